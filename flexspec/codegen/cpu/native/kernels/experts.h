// Mixture of experts: the best experts of each token, and the experts' gated MLPs on the tokens that have them.
//
// The weights of all experts follow each other, packed as a linear's are. A panel of the gate and up projections has 16 columns of the
// gate and the same 16 of up. A token's sum over its experts runs in their order, so it depends on no other token.
#pragma once
#include "linear.h"

namespace flexspec {

// The `top_k` largest logits of a row, the first of equal ones, and their softmax: over all logits, or with `normalised` over these.
class TopExpertsOp : public RowOp {
   public:
    explicit TopExpertsOp(const FlexspecTopExperts& args) : RowOp(args.rows, args.num_experts), a_(args) {}

   protected:
    void work_row(const Pass&, int row) const override {
        const float* logits = a_.logits.data + row * a_.logits.stride;
        float* weights = a_.weights.data + row * a_.weights.stride;
        float* ids = a_.ids.data + row * a_.ids.stride;
        uint64_t taken[MAX_EXPERTS / 64] = {};
        for (int j = 0; j < a_.top_k; j++) {
            int best = -1;
            for (int e = 0; e < a_.num_experts; e++)
                if (!(taken[e / 64] >> e % 64 & 1) && (best < 0 || logits[e] > logits[best])) best = e;
            taken[best / 64] |= (uint64_t)1 << best % 64;
            ids[j] = (float)best;
            weights[j] = logits[best];
        }
        Vec largest = broadcast(weights[0]);
        auto exponentials = [&](const float* values, int count) {
            return sum_columns(count, [&](int c, int n) {
                Vec e = exp(load_part(values + c, n) - largest);
                return iota() < n ? e : Vec{};
            });
        };
        float total = a_.normalised ? exponentials(weights, a_.top_k) : exponentials(logits, a_.num_experts);
        for (int c = 0; c < a_.top_k; c += LANES) {
            int n = part(c, a_.top_k);
            store_part(weights + c, exp(load_part(weights + c, n) - largest) / total, n);
        }
    }

   private:
    static constexpr int MAX_EXPERTS = 1024;
    FlexspecTopExperts a_;
};

template <class Math>
class ExpertsOp : public Op {
    using Element = typename Math::Element;
    using Unit = typename Math::Unit;
    using UnitVec = typename Math::UnitVec;
    static constexpr int HALF = PANEL / 2, HALF_VECS = PANEL_VECS / 2;

   public:
    explicit ExpertsOp(const FlexspecExperts& args)
        : a_(args),
          hidden_units_(Math::units(args.hidden)),
          inner_units_(Math::units(args.inner)),
          inner_panels_((args.inner + HALF - 1) / HALF),
          hidden_panels_((args.hidden + PANEL - 1) / PANEL) {}

    // Tokens are prepared and sorted by expert; gate, up and activation; down; each token's sum.
    int num_phases() const override { return 4; }

    int num_tasks(const Pass& pass, int phase) const override {
        int rows = pass.rows(a_.rows);
        if (rows == 0) return 0;
        if (phase == 0) return rows + 1;
        if (phase == 3) return rows;
        // Which experts are needed is not known yet: the last tasks may find nothing to do.
        int experts = (int)std::min<int64_t>(a_.num_experts, (int64_t)rows * a_.top_k);
        return experts * (phase == 1 ? inner_panels_ : hidden_panels_);
    }

    int64_t shared_bytes(const Pass& pass) const override { return Memory(*this, pass.rows(a_.rows), nullptr).bytes; }

    void work(const Pass& pass, int phase, int task, char* shared, char*) const override {
        int rows = pass.rows(a_.rows);
        Memory memory(*this, rows, shared);
        if (phase == 0) return task == rows ? sort_tokens(rows, memory) : prepare_row(task, memory);
        if (phase == 3) return add_experts(task, memory);
        int panels = phase == 1 ? inner_panels_ : hidden_panels_;
        int hit = task / panels;
        if (hit >= *memory.num_hit) return;
        int expert = memory.hit[hit];
        int first_pair = memory.starts[expert];
        for_row_tiles<Math::max_height>(memory.starts[expert + 1] - first_pair, [&](int first, auto height) {
            Tile tile{expert, task % panels, first_pair + first};
            if (phase == 1) activate_tile<height>(tile, memory);
            else down_tile<height>(tile, memory);
        });
    }

   private:
    // A pair is a token with one of its experts; pairs are sorted by expert, then by token.
    struct Memory {
        int32_t* num_hit;
        int32_t* hit;      // the experts that have tokens
        int32_t* starts;   // [experts + 1], first pair of each expert
        int32_t* tokens;   // of each pair
        int32_t* pairs;    // [rows, top_k]
        Element* x;        // [rows, padded hidden]
        Element* inner;    // [pairs, padded inner]
        float* y;          // [pairs, hidden]
        int64_t bytes = 0;

        Memory(const ExpertsOp& op, int rows, char* base) {
            int64_t pairs_count = (int64_t)rows * op.a_.top_k;
            auto take = [&](auto*& pointer, int64_t count) {
                pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + bytes);
                bytes = round_up(bytes + count * sizeof(*pointer), 64);
            };
            take(num_hit, 1);
            take(hit, op.a_.num_experts);
            take(starts, op.a_.num_experts + 1);
            take(tokens, pairs_count);
            take(pairs, pairs_count);
            take(x, rows * op.padded_hidden());
            take(inner, pairs_count * op.padded_inner());
            take(y, pairs_count * op.a_.hidden);
        }
    };

    struct Tile {
        int expert, panel, first_pair;
    };

    int64_t padded_hidden() const { return round_up(a_.hidden, LANES); }
    int64_t padded_inner() const { return (int64_t)inner_panels_ * HALF; }
    int expert_of(int row, int j) const { return (int)a_.ids.data[row * a_.ids.stride + j]; }

    void prepare_row(int row, const Memory& memory) const {
        const float* x = a_.x.data + row * a_.x.stride;
        Element* out = memory.x + row * padded_hidden();
        for (int c = 0; c < a_.hidden; c += LANES) store(out + c, load_part(x + c, part(c, a_.hidden)));
    }

    void sort_tokens(int rows, const Memory& memory) const {
        int32_t* starts = memory.starts;
        std::fill(starts, starts + a_.num_experts + 1, 0);
        for (int row = 0; row < rows; row++)
            for (int j = 0; j < a_.top_k; j++) starts[expert_of(row, j)]++;
        int hits = 0, total = 0;
        for (int e = 0; e <= a_.num_experts; e++) {
            int count = starts[e];
            if (count > 0) memory.hit[hits++] = e;
            starts[e] = total += count;
        }
        *memory.num_hit = hits;
        // Filled from behind, each expert's end moves to its start.
        for (int row = rows - 1; row >= 0; row--)
            for (int j = a_.top_k - 1; j >= 0; j--) {
                int pair = --starts[expert_of(row, j)];
                memory.tokens[pair] = row;
                memory.pairs[row * a_.top_k + j] = pair;
            }
    }

    template <int R>
    static void multiply(const Element* const* rows, const Unit* w, int units, Vec (*acc)[PANEL_VECS]) {
        const Unit* x[R];
        for (int r = 0; r < R; r++) x[r] = reinterpret_cast<const Unit*>(rows[r]);
        Vec sums[R][PANEL_VECS] = {};
        for (int k = 0; k < units; k++, w += PANEL) {
            __builtin_prefetch(w + 64 * PANEL);
            __builtin_prefetch(w + 64 * PANEL + PANEL / 2);
            UnitVec columns[PANEL_VECS];
            for (int v = 0; v < PANEL_VECS; v++) columns[v] = load_bytes<UnitVec>(w + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                UnitVec value = broadcast(x[r][k]);
                for (int v = 0; v < PANEL_VECS; v++) sums[r][v] = Math::multiply_add(sums[r][v], value, columns[v]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < PANEL_VECS; v++) acc[r][v] = sums[r][v];
    }

    template <int R>
    __attribute__((noinline)) void activate_tile(const Tile& tile, const Memory& memory) const {
        const Element* rows[R];
        for (int r = 0; r < R; r++) rows[r] = memory.x + memory.tokens[tile.first_pair + r] * padded_hidden();
        Vec acc[R][PANEL_VECS];
        int64_t panel = (int64_t)tile.expert * inner_panels_ + tile.panel;
        multiply<R>(rows, static_cast<const Unit*>(a_.gate_up) + panel * hidden_units_ * PANEL, hidden_units_, acc);
        finish_inner(acc[0], R, tile, a_.gate_up_bias ? a_.gate_up_bias + panel * PANEL : nullptr, memory);
    }

    template <int R>
    __attribute__((noinline)) void down_tile(const Tile& tile, const Memory& memory) const {
        const Element* rows[R];
        for (int r = 0; r < R; r++) rows[r] = memory.inner + (tile.first_pair + r) * padded_inner();
        Vec acc[R][PANEL_VECS];
        int64_t panel = (int64_t)tile.expert * hidden_panels_ + tile.panel;
        multiply<R>(rows, static_cast<const Unit*>(a_.down) + panel * inner_units_ * PANEL, inner_units_, acc);
        finish_down(acc[0], R, tile, a_.down_bias ? a_.down_bias + panel * PANEL : nullptr, memory);
    }

    // Out of line: one copy of their code, hence one rounding, for all heights.
    __attribute__((noinline)) void finish_inner(const Vec* acc, int count, const Tile& tile, const float* bias, const Memory& memory) const {
        for (int r = 0; r < count; r++, acc += PANEL_VECS)
            for (int v = 0; v < HALF_VECS; v++) {
                Vec gate = acc[v], up = acc[HALF_VECS + v];
                if (bias) {
                    gate += load(bias + v * LANES);
                    up += load(bias + HALF + v * LANES);
                }
                store(memory.inner + (tile.first_pair + r) * padded_inner() + tile.panel * HALF + v * LANES, gated(gate, up));
            }
    }

    __attribute__((noinline)) void finish_down(const Vec* acc, int count, const Tile& tile, const float* bias, const Memory& memory) const {
        for (int r = 0; r < count; r++, acc += PANEL_VECS)
            for (int v = 0; v < PANEL_VECS; v++) {
                int c = tile.panel * PANEL + v * LANES;
                int n = part(c, a_.hidden);
                if (n <= 0) break;
                Vec y = acc[v];
                if (bias) y += load(bias + v * LANES);
                store_part(memory.y + (int64_t)(tile.first_pair + r) * a_.hidden + c, y, n);
            }
    }

    Vec gated(Vec gate, Vec up) const {
        if (a_.activation != ACT_CLAMPED_SWISH) return activate(a_.activation, gate) * up;
        Vec limit = broadcast(a_.limit);
        gate = minimum(gate, limit);
        up = maximum(minimum(up, limit), -limit);
        return gate / (exp(gate * -a_.alpha) + 1.0f) * (up + 1.0f);
    }

    void add_experts(int row, const Memory& memory) const {
        const float* weights = a_.weights.data + row * a_.weights.stride;
        const int32_t* pairs = memory.pairs + (int64_t)row * a_.top_k;
        for (int c = 0; c < a_.hidden; c += LANES) {
            int n = part(c, a_.hidden);
            Vec total = {};
            for (int j = 0; j < a_.top_k; j++) {
                Vec y = load_part(memory.y + (int64_t)pairs[j] * a_.hidden + c, n);
                total = fma(y, broadcast(weights[j]), total);
            }
            store_part(a_.out.data + row * a_.out.stride + c, total, n);
        }
    }

    FlexspecExperts a_;
    int hidden_units_, inner_units_, inner_panels_, hidden_panels_;
};

}  // namespace flexspec
