// y = residual + act(prologue(x) W^T + bias), with W packed in panels of 32 columns.
//
// A panel is [units][32] of 4-byte units: a float32, or a pair of bfloat16 neighbours in K. Every output element has one
// accumulator that runs over K in order, so its value depends neither on the rows beside it nor on the tile's height.
#pragma once
#include <type_traits>

#include "products.h"
#include "row_tiles.h"
#include "rows.h"

namespace flexspec {

constexpr int PANEL = 32;
constexpr int PANEL_VECS = PANEL / LANES;

template <class Math>
class LinearOp : public Op {
    using Element = typename Math::Element;
    using Unit = typename Math::Unit;
    using UnitVec = typename Math::UnitVec;
    static constexpr bool is_float = std::is_same<Element, float>::value;

   public:
    explicit LinearOp(const FlexspecLinear& args)
        : a_(args), units_(Math::units(args.in_features)), padded_cols_(round_up(args.in_features, LANES)) {}

    // Phase 0 prepares x once for all threads; a small x each thread prepares for itself, which saves a barrier.
    int num_phases() const override { return 2; }

    int num_tasks(const Pass& pass, int phase) const override {
        int rows = pass.rows(a_.rows);
        if (phase == 0) return in_place() || is_small(rows) ? 0 : rows;
        return rows == 0 ? 0 : (a_.out_features + PANEL - 1) / PANEL;
    }

    int64_t private_bytes(const Pass& pass) const override { return is_small(pass.rows(a_.rows)) ? prepared_bytes(pass) : 0; }
    int64_t shared_bytes(const Pass& pass) const override { return is_small(pass.rows(a_.rows)) ? 0 : prepared_bytes(pass); }

    void enter(const Pass& pass, int phase, char*, char* scratch) const override {
        int rows = pass.rows(a_.rows);
        if (phase == 0 || in_place() || !is_small(rows)) return;
        for (int row = 0; row < rows; row++) prepare_row(row, scratch);
    }

    void work(const Pass& pass, int phase, int task, char* shared, char* scratch) const override {
        int rows = pass.rows(a_.rows);
        if (phase == 0) return prepare_row(task, shared);
        const Unit* x = reinterpret_cast<const Unit*>(is_small(rows) ? scratch : shared);
        int64_t stride = padded_cols_ * sizeof(Element) / sizeof(Unit);
        if (in_place()) {
            x = reinterpret_cast<const Unit*>(a_.x.data);
            stride = a_.x.stride;
        }
        for_row_tiles<Math::max_height>(rows, [&](int first, auto height) {
            // One tile alone is short of time: it fetches just ahead of itself. Several share the fetching of the next panel.
            const Unit* ahead = height == rows ? panel(task) + 64 * PANEL : panel(task + 1) + (int64_t)units_ * PANEL * first / rows;
            run_tile<height>({x + first * stride, stride, task, first, ahead, PANEL * height / rows});
        });
    }

   private:
    bool in_place() const { return is_float && a_.prologue == PROLOGUE_NONE; }
    bool is_small(int rows) const { return (int64_t)rows * a_.in_features <= (a_.prologue == PROLOGUE_GATE ? 8192 : 32768); }
    int64_t prepared_bytes(const Pass& pass) const { return pass.rows(a_.rows) * padded_cols_ * sizeof(Element); }

    __attribute__((noinline)) void prepare_row(int row, char* prepared) const {
        Element* out = reinterpret_cast<Element*>(prepared) + row * padded_cols_;
        const float* x = a_.x.data + row * a_.x.stride;
        int cols = a_.in_features;
        if (a_.prologue == PROLOGUE_RMS || a_.prologue == PROLOGUE_LAYER) {
            NormSpec spec{a_.prologue == PROLOGUE_RMS ? NORM_RMS : NORM_LAYER, a_.norm_weight, a_.norm_bias, a_.eps};
            return norm_row<true>(spec, x, out, cols);
        }
        const float* up = a_.prologue == PROLOGUE_GATE ? a_.up.data + row * a_.up.stride : nullptr;
        for (int c = 0; c < cols; c += LANES) {
            int n = part(c, cols);
            Vec v = load_part(x + c, n);
            if (up) v = activate(a_.prologue_activation, v) * load_part(up + c, n);
            store(out + c, v);
        }
    }

    // Rows from `first_row` on of one panel; every step of K also fetches a piece of the next panel, from `ahead` on.
    struct Tile {
        const Unit* x;
        int64_t stride;
        int panel, first_row;
        const Unit* ahead;
        int ahead_step;
    };

    const Unit* panel(int i) const { return static_cast<const Unit*>(a_.weight) + (int64_t)i * units_ * PANEL; }

    template <int R>
    __attribute__((noinline)) void run_tile(const Tile& tile) const {
        const Unit* x = tile.x;
        const Unit* w = panel(tile.panel);
        const Unit* ahead = tile.ahead;
        Vec acc[R][PANEL_VECS] = {};
        for (int r = 0; r < R; r++) fetch_output(tile.panel, tile.first_row + r);
        for (int k = 0; k < units_; k++, w += PANEL, ahead += tile.ahead_step) {
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + PANEL / 2);
            UnitVec columns[PANEL_VECS];
            for (int v = 0; v < PANEL_VECS; v++) columns[v] = load_bytes<UnitVec>(w + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                UnitVec value = broadcast(x[r * tile.stride + k]);
                for (int v = 0; v < PANEL_VECS; v++) acc[r][v] = Math::multiply_add(acc[r][v], value, columns[v]);
            }
        }
        finish_rows(acc[0], R, tile.panel, tile.first_row);
    }

    // The lines that the tile will write: of many rows, far apart, they would come too slowly at its end.
    void fetch_output(int panel, int row) const {
        const float* out = a_.out.data + row * a_.out.stride + panel * PANEL;
        __builtin_prefetch(out, 1);
        __builtin_prefetch(out + PANEL / 2, 1);
    }

    // Out of line, as are the rows' preparations: one copy of their code, hence one rounding, for all heights.
    __attribute__((noinline)) void finish_rows(const Vec* acc, int rows, int panel, int first_row) const {
        for (int row = first_row; row < first_row + rows; row++, acc += PANEL_VECS) {
            for (int v = 0; v < PANEL_VECS; v++) {
                int c = panel * PANEL + v * LANES;
                int n = part(c, a_.out_features);
                if (n <= 0) break;
                Vec y = acc[v];
                if (a_.bias) y += load(a_.bias + c);
                if (a_.activation != ACT_NONE) y = activate(a_.activation, y);
                if (a_.residual.data) y += load_part(a_.residual.data + row * a_.residual.stride + c, n);
                store_part(a_.out.data + row * a_.out.stride + c, y, n);
            }
        }
    }

    FlexspecLinear a_;
    int units_;
    int64_t padded_cols_;
};

}  // namespace flexspec
