// One forward pass as the operators see it: the batch, the cache, and the physical slots that each token reads.
#pragma once
#include <algorithm>
#include <vector>

#include "abi.h"

namespace flexspec {

// A run of adjacent tokens of one request.
struct Segment {
    int first_token;
    int num_tokens;
    int slots_offset;  // into Pass::physical_slots: the request's slots 0, 1, ... up to its longest context
};

struct Pass {
    FlexspecBatch batch;
    FlexspecCache cache;
    int num_threads;
    std::vector<Segment> segments;
    std::vector<int32_t> physical_slots;
    std::vector<int32_t> write_slots;   // [tokens]
    std::vector<int32_t> tail_offsets;  // [tokens + 1], into tail_slots
    std::vector<int32_t> tail_slots;    // physical slots of each token's tail ancestors, root first

    int rows(int32_t kind) const { return kind == ROWS_OUTPUTS ? batch.num_outputs : batch.num_tokens; }
    int context(int token) const { return batch.context_lens[token]; }
    int tail(int token) const { return tail_offsets[token + 1] - tail_offsets[token]; }
    int visible(int token) const { return context(token) + tail(token); }

    void build(const FlexspecBatch& b, const FlexspecCache& c, int threads) {
        batch = b;
        cache = c;
        num_threads = threads;
        segments.clear();
        physical_slots.clear();
        write_slots.clear();
        tail_slots.clear();
        tail_offsets.assign(1, 0);
        for (int token = 0; token < b.num_tokens; token++) {
            if (token == 0 || b.request_rows[token] != b.request_rows[token - 1]) open_segment(token);
            segments.back().num_tokens++;
            write_slots.push_back(physical(b.request_rows[token], b.slots[token]));
            add_tail(token);
        }
    }

   private:
    int32_t physical(int request, int slot) const {
        const int32_t* table = batch.block_tables + (int64_t)request * batch.blocks_per_request;
        return table[slot / cache.block_size] * cache.block_size + slot % cache.block_size;
    }

    void open_segment(int first) {
        int request = batch.request_rows[first], longest = 0;
        for (int t = first; t < batch.num_tokens && batch.request_rows[t] == request; t++) longest = std::max(longest, context(t));
        segments.push_back({first, 0, (int)physical_slots.size()});
        for (int slot = 0; slot < longest; slot += cache.block_size) {
            int32_t start = physical(request, slot);
            for (int i = 0; i < std::min(cache.block_size, longest - slot); i++) physical_slots.push_back(start + i);
        }
    }

    void add_tail(int token) {
        int request = batch.request_rows[token];
        const int32_t* words = batch.tail_bits + (int64_t)token * batch.tail_words;
        for (int w = 0; w < batch.tail_words; w++)
            for (uint32_t bits = (uint32_t)words[w]; bits; bits &= bits - 1)
                tail_slots.push_back(physical(request, batch.tail_starts[request] + 32 * w + __builtin_ctz(bits)));
        tail_offsets.push_back((int32_t)tail_slots.size());
    }
};

}  // namespace flexspec
