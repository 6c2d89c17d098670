// Tree attention: write keys and values of the pass, then let every token attend to its context and its tail ancestors.
//
// Sums run over keys by logical index (context slots, then ancestors root first), in one accumulator an output element
// and in softmax lanes and bfloat16 pairs chosen by that index, so that a token of a tree gets bit for bit what it would
// get in a chain.
#pragma once
#include "attention_tiles.h"
#include "program.h"

namespace flexspec {

constexpr int BLOCK_ROWS = 48;    // most rows of queries that share the loads of keys
constexpr int KEY_LOAD_ROWS = 3;  // rows whose scores cost as much as loading their keys

struct TokenBlock {
    int first_token, num_tokens, slots_offset;
};

static inline void rotate_head(const FlexspecAttention& a, int token, const float* x, float* __restrict out) {
    int dim = a.rotary_dim;
    const float* cos = a.cos.data + token * a.cos.stride;
    const float* sin = a.sin.data + token * a.sin.stride;
    int half = dim / 2;
    if (a.interleaved) {
        for (int i = 0; i < half; i++) {
            out[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
            out[2 * i + 1] = x[2 * i + 1] * cos[i + half] + x[2 * i] * sin[i + half];
        }
    } else {
        for (int i = 0; i < half; i++) {
            out[i] = x[i] * cos[i] - x[i + half] * sin[i];
            out[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
        }
    }
    for (int i = dim; i < a.head_dim; i++) out[i] = x[i];
}

// Lanes from logical index j on that lie outside [low, length) get `outside`.
static inline Vec inside(Vec v, int j, int low, int length, float outside) {
    if (j >= low && j + LANES <= length) return v;
    IntVec index = iota() + j;
    return (index >= low) & (index < length) ? v : broadcast(outside);
}

// Scores become weights exp(score - max), in place, on the logical indices [low, length), zero around them; returns the sum
// of the weights before their rounding. Index j is at [j - begin]; begin is a multiple of LANES. A score gets slope times the
// distance from the last index to its own. The sum has the sink's weight too; -INFINITY is none.
template <class Operand>
static float softmax_row(float* scores, int begin, int low, int length, float scale, float softcap, float slope, float sink) {
    Vec best = broadcast(-INFINITY);
    for (int j = begin; j < length; j += LANES) {
        Vec s = load(scores + j - begin) * scale;
        if (softcap > 0) s = tanh(s / softcap) * softcap;
        if (slope != 0) s += __builtin_convertvector(iota() + (j - length + 1), Vec) * slope;
        s = inside(s, j, low, length, -INFINITY);
        store(scores + j - begin, s);
        best = maximum(best, s);
    }
    float max = std::max(max_lanes(best), sink);
    Vec sum = {};
    for (int j = begin; j < length; j += LANES) {
        Vec p = inside(exp(load(scores + j - begin) - max), j, low, length, 0.0f);
        store(reinterpret_cast<Operand*>(scores) + j - begin, p);
        sum += p;
    }
    return sum_lanes(sum) + (sink == -INFINITY ? 0.0f : std::exp(sink - max));
}

template <class Math>
class AttentionOp : public Op {
    using Element = typename Math::Element;
    using Operand = typename Math::Operand;
    using Unit = typename Math::Unit;
    static constexpr int PER_UNIT = Math::unit_elements;

   public:
    explicit AttentionOp(const FlexspecAttention& args) : a_(args), group_(args.num_heads / args.num_kv_heads) {}

    void prepare(const Pass& pass) override {
        padded_dim_ = pass.cache.padded_head_dim;
        int block = block_tokens(pass);
        blocks_.clear();
        score_stride_ = 0;
        for (const Segment& s : pass.segments) {
            int longest = 0;
            for (int t = s.first_token; t < s.first_token + s.num_tokens; t++) longest = std::max(longest, pass.visible(t));
            score_stride_ = std::max(score_stride_, round_up(longest, KEY_TILE) + KEY_TILE);
            int count = (s.num_tokens + block - 1) / block;
            for (int i = 0; i < count; i++) {
                int first = s.num_tokens * i / count, end = s.num_tokens * (i + 1) / count;
                blocks_.push_back({s.first_token + first, end - first, s.slots_offset});
            }
        }
        max_rows_ = block * group_;
    }

    int num_phases() const override { return 2; }
    int num_tasks(const Pass& pass, int phase) const override {
        return phase == 0 ? pass.batch.num_tokens : (int)blocks_.size() * a_.num_kv_heads;
    }

    int64_t private_bytes(const Pass&) const override {
        int64_t items = max_rows_ * (2 * padded_dim_ + 1 + score_stride_) + (padded_dim_ + group_) * KEY_TILE + LANES + score_stride_;
        return items * sizeof(float);
    }

    void work(const Pass& pass, int phase, int task, char*, char* scratch) const override {
        Scratch s = carve(scratch);
        int num_blocks = (int)blocks_.size();
        if (phase == 0) write_cache(pass, task, s.out);
        else attend(pass, blocks_[task % num_blocks], task / num_blocks, s);
    }

   private:
    struct Scratch {
        Unit* q;         // [rows, units]
        Unit* tile;      // [units, KEY_TILE]
        int32_t* slots;  // [score_stride]
        float* out;      // [rows, padded_dim]
        float* tail;     // [group, KEY_TILE]
        float* sums;     // [rows]
        float* scores;   // [rows, score_stride]; logical index j is element j - begin, of float or, as a weight, of Operand
    };

    Scratch carve(char* memory) const {
        Scratch s;
        s.q = reinterpret_cast<Unit*>(memory);
        s.tile = s.q + max_rows_ * units();
        s.slots = reinterpret_cast<int32_t*>(s.tile + units() * KEY_TILE);
        s.out = reinterpret_cast<float*>(s.slots + score_stride_);
        s.tail = s.out + max_rows_ * padded_dim_;
        s.sums = s.tail + group_ * KEY_TILE;
        s.scores = s.sums + round_up(max_rows_, LANES);
        return s;
    }

    // Tall blocks share the loads of keys; but the last round of tasks should leave no thread idle.
    int block_tokens(const Pass& pass) const {
        int longest = 1;
        for (const Segment& s : pass.segments) longest = std::max(longest, s.num_tokens);
        int best = 1;
        int64_t least = INT64_MAX;
        for (int block = std::min(longest, std::max(1, BLOCK_ROWS / group_)); block > 0; block--) {
            int64_t num_tasks = 0;
            for (const Segment& s : pass.segments) num_tasks += (s.num_tokens + block - 1) / block * a_.num_kv_heads;
            int64_t rounds = (num_tasks + pass.num_threads - 1) / pass.num_threads;
            int64_t cost = rounds * (block * group_ + KEY_LOAD_ROWS);
            if (cost < least) {
                least = cost;
                best = block;
            }
        }
        return best;
    }

    int64_t slot_stride(const Pass& pass) const { return (int64_t)pass.cache.num_kv_heads * padded_dim_; }
    int64_t units() const { return padded_dim_ / PER_UNIT; }
    Element* layer(const Pass& pass, void* cache) const {
        return static_cast<Element*>(cache) + a_.layer * pass.cache.num_slots * slot_stride(pass);
    }
    int low(const Pass& pass, int token) const {
        return a_.window > 0 ? (int)std::max<int64_t>(0, pass.batch.positions[token] - a_.window + 1) : 0;
    }

    void write_cache(const Pass& pass, int token, float* rotated) const {
        int64_t offset = pass.write_slots[token] * slot_stride(pass);
        Element* keys = layer(pass, pass.cache.keys) + offset;
        Element* values = layer(pass, pass.cache.values) + offset;
        for (int head = 0; head < a_.num_kv_heads; head++, keys += padded_dim_, values += padded_dim_) {
            rotate_head(a_, token, a_.k.data + token * a_.k.stride + head * a_.head_dim, rotated);
            const float* v = a_.v.data + token * a_.v.stride + head * a_.head_dim;
            for (int d = 0; d < a_.head_dim; d += LANES) {
                int n = part(d, a_.head_dim);
                store_part(keys + d, load_part(rotated + d, n), n);
                store_part(values + d, load_part(v + d, n), n);
            }
        }
    }

    void attend(const Pass& pass, const TokenBlock& block, int head, const Scratch& s) const {
        int end = block.first_token + block.num_tokens;
        int begin = INT32_MAX, context_min = INT32_MAX, context_max = 0;
        for (int token = block.first_token; token < end; token++) {
            context_min = std::min(context_min, pass.context(token));
            context_max = std::max(context_max, pass.context(token));
            begin = std::min(begin, low(pass, token));
        }
        begin = std::min(begin, context_min) / KEY_TILE * KEY_TILE;
        const int32_t* slots = pass.physical_slots.data() + block.slots_offset;
        const Element* keys = layer(pass, pass.cache.keys) + head * padded_dim_;
        const Element* values = layer(pass, pass.cache.values) + head * padded_dim_;

        load_queries(block, head, s);
        for (int j = begin; j < context_max; j += KEY_TILE) {
            load_key_tile<Math>(keys, slot_stride(pass), slots + j, context_max - j, padded_dim_, s.tile);
            score_rows<Math>(s.q, units(), block.num_tokens * group_, s.tile, Math::units(a_.head_dim), s.scores + j - begin,
                             score_stride_);
        }
        std::memset(s.out, 0, block.num_tokens * group_ * padded_dim_ * sizeof(float));
        for (int token = block.first_token; token < end; token++) {
            int row = (token - block.first_token) * group_;
            score_tail(pass, token, keys, begin, row, s);
            for (int g = 0; g < group_; g++) {
                float slope = a_.slopes ? a_.slopes[head * group_ + g] : 0.0f;
                float sink = a_.sinks ? a_.sinks[head * group_ + g] : -INFINITY;
                s.sums[row + g] = softmax_row<Operand>(s.scores + (row + g) * score_stride_, begin, low(pass, token),
                                                       pass.visible(token), a_.scale, a_.softcap, slope, sink);
            }
        }
        // All tokens share the values up to an index where a pair begins; behind it each has its own.
        int shared = context_min / PER_UNIT * PER_UNIT;
        const Unit* weights = reinterpret_cast<const Unit*>(s.scores);
        Values<Element> common{values, slot_stride(pass), slots + begin, shared - begin};
        add_values<Math>(weights, score_stride_, block.num_tokens * group_, common, s.out, padded_dim_);
        for (int token = block.first_token; token < end; token++) {
            int row = (token - block.first_token) * group_;
            std::copy(slots + shared, slots + pass.context(token), s.slots);
            std::copy_n(tail_slots(pass, token), pass.tail(token), s.slots + pass.context(token) - shared);
            Values<Element> own{values, slot_stride(pass), s.slots, pass.visible(token) - shared};
            add_values<Math>(weights + row * score_stride_ + (shared - begin) / PER_UNIT, score_stride_, group_, own,
                             s.out + row * padded_dim_, padded_dim_);
        }
        store_outputs(block, head, s);
    }

    const int32_t* tail_slots(const Pass& pass, int token) const { return pass.tail_slots.data() + pass.tail_offsets[token]; }

    void load_queries(const TokenBlock& block, int head, const Scratch& s) const {
        Operand* q = reinterpret_cast<Operand*>(s.q);
        float* rotated = s.out;
        std::fill(rotated + a_.head_dim, rotated + padded_dim_, 0.0f);
        for (int i = 0; i < block.num_tokens; i++) {
            int token = block.first_token + i;
            for (int g = 0; g < group_; g++, q += padded_dim_) {
                rotate_head(a_, token, a_.q.data + token * a_.q.stride + (head * group_ + g) * a_.head_dim, rotated);
                for (int d = 0; d < padded_dim_; d += LANES) store(q + d, load(rotated + d));
            }
        }
    }

    // The token's ancestors follow its context in its rows of scores.
    void score_tail(const Pass& pass, int token, const Element* keys, int begin, int row, const Scratch& s) const {
        for (int i = 0; i < pass.tail(token); i += KEY_TILE) {
            int count = std::min(KEY_TILE, pass.tail(token) - i);
            load_key_tile<Math>(keys, slot_stride(pass), tail_slots(pass, token) + i, pass.tail(token) - i, padded_dim_, s.tile);
            score_rows<Math>(s.q + row * units(), units(), group_, s.tile, Math::units(a_.head_dim), s.tail, KEY_TILE);
            for (int g = 0; g < group_; g++)
                std::memcpy(s.scores + (row + g) * score_stride_ + pass.context(token) + i - begin, s.tail + g * KEY_TILE,
                            count * sizeof(float));
        }
    }

    void store_outputs(const TokenBlock& block, int head, const Scratch& s) const {
        for (int i = 0; i < block.num_tokens; i++) {
            int64_t token = block.first_token + i;
            for (int g = 0; g < group_; g++) {
                int row = i * group_ + g;
                float inverse = 1.0f / s.sums[row];
                float* out = a_.out.data + token * a_.out.stride + (head * group_ + g) * a_.head_dim;
                for (int d = 0; d < a_.head_dim; d += LANES)
                    store_part(out + d, load(s.out + row * padded_dim_ + d) * inverse, part(d, a_.head_dim));
            }
        }
    }

    FlexspecAttention a_;
    int group_;
    int64_t padded_dim_ = 0;
    int64_t score_stride_ = 0;
    int64_t max_rows_ = 0;
    std::vector<TokenBlock> blocks_;
};

}  // namespace flexspec
