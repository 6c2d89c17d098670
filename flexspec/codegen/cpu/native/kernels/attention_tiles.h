// The inner loops of attention, over keys and values named by physical slot.
#pragma once
#include "row_tiles.h"
#include "vector.h"

namespace flexspec {

constexpr int KEY_TILE = 32;
constexpr int KEY_VECS = KEY_TILE / LANES;
// Heights that leave the accumulators in registers.
constexpr int SCORE_ROWS = LANES == 16 ? 12 : 2;
constexpr int VALUE_ROWS = LANES == 16 ? 6 : 2;

template <int H>
static inline void swap_blocks(Vec& a, Vec& b) {
    IntVec low, high;
    for (int i = 0; i < LANES; i++) {
        low[i] = i & H ? LANES + i - H : i;
        high[i] = i & H ? LANES + i : i + H;
    }
#if defined(__clang__)
    Vec old_a = a, old_b = b;
    for (int i = 0; i < LANES; i++) {
        a[i] = i & H ? old_b[i - H] : old_a[i];
        b[i] = i & H ? old_b[i] : old_a[i + H];
    }
#else
    Vec new_a = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
    a = new_a;
#endif
}

template <int H = 1>
static inline void transpose(Vec (&rows)[LANES]) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & H)) swap_blocks<H>(rows[i], rows[i + H]);
    if constexpr (2 * H < LANES) transpose<2 * H>(rows);
}

constexpr int CACHE_LINE = 64;
constexpr int VALUES_AHEAD = 32;  // keys between the fetch of a value and its use

template <class T>
static inline void prefetch_row(const T* row, int length) {
    for (int i = 0; i < length; i += CACHE_LINE / sizeof(T)) __builtin_prefetch(row + i);
}

// tile[d * KEY_TILE + i] = key i of `slots`, element d, of the first `remaining` keys; what follows them is of no use.
template <class T>
static void load_key_tile(const T* keys, int64_t slot_stride, const int32_t* slots, int remaining, int padded_dim, float* tile) {
    int count = remaining < KEY_TILE ? remaining : KEY_TILE;
    for (int i = KEY_TILE; i < remaining && i < 2 * KEY_TILE; i++) prefetch_row(keys + slots[i] * slot_stride, padded_dim);
    for (int first = 0; first < count; first += LANES) {
        for (int d = 0; d < padded_dim; d += LANES) {
            Vec rows[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) rows[i] = first + i < count ? load(keys + slots[first + i] * slot_stride + d) : Vec{};
            transpose(rows);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(tile + (d + i) * KEY_TILE + first, rows[i]);
        }
    }
}

template <int R>
static inline void score_block(const float* q, int padded_dim, const float* tile, int head_dim, float* scores, int64_t score_stride) {
    Vec acc[R][KEY_VECS] = {};
    for (int d = 0; d < head_dim; d++) {
        Vec keys[KEY_VECS];
        for (int v = 0; v < KEY_VECS; v++) keys[v] = load(tile + d * KEY_TILE + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            Vec value = broadcast(q[r * padded_dim + d]);
            for (int v = 0; v < KEY_VECS; v++) acc[r][v] = fma(value, keys[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < KEY_VECS; v++) store(scores + r * score_stride + v * LANES, acc[r][v]);
}

// scores[r][i] = q[r] . key i, each summed over d in order.
static void score_rows(const float* q, int rows, int padded_dim, const float* tile, int head_dim, float* scores, int64_t score_stride) {
    for_row_tiles<SCORE_ROWS>(rows, [&](int first, auto height) {
        score_block<height>(q + first * padded_dim, padded_dim, tile, head_dim, scores + first * score_stride, score_stride);
    });
}

template <class T, int R, int V>
static inline void value_block(const float* weights, int64_t weight_stride, const T* values, int64_t slot_stride, const int32_t* slots,
                               int count, float* out, int padded_dim) {
    Vec acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = load(out + r * padded_dim + v * LANES);
    for (int j = 0; j < count; j++) {
        const T* value = values + slots[j] * slot_stride;
        if (j + VALUES_AHEAD < count)
            for (int i = 0; i < V * LANES; i += CACHE_LINE / sizeof(T))
                __builtin_prefetch(values + slots[j + VALUES_AHEAD] * slot_stride + i);
        Vec columns[V];
        for (int v = 0; v < V; v++) columns[v] = load(value + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            Vec weight = broadcast(weights[r * weight_stride + j]);
            for (int v = 0; v < V; v++) acc[r][v] = fma(weight, columns[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(out + r * padded_dim + v * LANES, acc[r][v]);
}

template <class T, int R>
static void value_columns(const float* weights, int64_t weight_stride, const T* values, int64_t slot_stride, const int32_t* slots,
                          int count, float* out, int padded_dim) {
    int d = 0;
    for (; d + 4 * LANES <= padded_dim; d += 4 * LANES)
        value_block<T, R, 4>(weights, weight_stride, values + d, slot_stride, slots, count, out + d, padded_dim);
    for (; d < padded_dim; d += LANES)
        value_block<T, R, 1>(weights, weight_stride, values + d, slot_stride, slots, count, out + d, padded_dim);
}

// out[r] += sum over j in order of weights[r][j] * value j.
template <class T>
static void add_values(const float* weights, int64_t weight_stride, int rows, const T* values, int64_t slot_stride,
                       const int32_t* slots, int count, float* out, int padded_dim) {
    if (count <= 0) return;
    for_row_tiles<VALUE_ROWS>(rows, [&](int first, auto height) {
        value_columns<T, height>(weights + first * weight_stride, weight_stride, values, slot_stride, slots, count,
                                 out + first * padded_dim, padded_dim);
    });
}

}  // namespace flexspec
