// The inner loops of attention, over keys and values named by physical slot.
#pragma once
#include "products.h"
#include "row_tiles.h"

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

// tile[u * KEY_TILE + i] = unit u, below N, of key i.
template <class Math, int N>
static inline void load_key_block(const typename Math::Element* keys, int64_t slot_stride, const int32_t* slots, int count,
                                  typename Math::Unit* tile) {
    Vec rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        rows[i] = i < count ? bit_cast<Vec>(Math::template load_units<N>(keys + slots[i] * slot_stride)) : Vec{};
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) std::memcpy(tile + i * KEY_TILE, &rows[i], sizeof(Vec));
}

// tile[u * KEY_TILE + i] = key i of `slots`, unit u, of the first `remaining` keys; what follows them is of no use.
template <class Math>
static void load_key_tile(const typename Math::Element* keys, int64_t slot_stride, const int32_t* slots, int remaining, int padded_dim,
                          typename Math::Unit* tile) {
    int count = remaining < KEY_TILE ? remaining : KEY_TILE;
    for (int i = KEY_TILE; i < remaining && i < 2 * KEY_TILE; i++) prefetch_row(keys + slots[i] * slot_stride, padded_dim);
    constexpr int PER_UNIT = Math::unit_elements;
    for (int first = 0; first < count; first += LANES) {
        int d = 0;
        for (; d + PER_UNIT * LANES <= padded_dim; d += PER_UNIT * LANES)
            load_key_block<Math, LANES>(keys + d, slot_stride, slots + first, count - first, tile + d / PER_UNIT * KEY_TILE + first);
        if (d < padded_dim)
            load_key_block<Math, LANES / PER_UNIT>(keys + d, slot_stride, slots + first, count - first,
                                                   tile + d / PER_UNIT * KEY_TILE + first);
    }
}

// Strides are in units.
template <class Math, int R, class Unit>
static inline void score_block(const Unit* q, int64_t q_stride, const Unit* tile, int num_units, float* scores, int64_t score_stride) {
    Vec acc[R][KEY_VECS] = {};
    for (int u = 0; u < num_units; u++) {
        typename Math::UnitVec keys[KEY_VECS];
        for (int v = 0; v < KEY_VECS; v++) keys[v] = load_bytes<typename Math::UnitVec>(tile + u * KEY_TILE + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            typename Math::UnitVec value = broadcast(q[r * q_stride + u]);
            for (int v = 0; v < KEY_VECS; v++) acc[r][v] = Math::multiply_add(acc[r][v], value, keys[v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < KEY_VECS; v++) store(scores + r * score_stride + v * LANES, acc[r][v]);
}

// scores[r][i] = q[r] . key i, each summed over units in order.
template <class Math, class Unit>
static void score_rows(const Unit* q, int64_t q_stride, int rows, const Unit* tile, int num_units, float* scores, int64_t score_stride) {
    for_row_tiles<SCORE_ROWS>(rows, [&](int first, auto height) {
        score_block<Math, height>(q + first * q_stride, q_stride, tile, num_units, scores + first * score_stride, score_stride);
    });
}

// Values named by slot, of adjacent logical indices from an even one on.
template <class Element>
struct Values {
    const Element* data;
    int64_t slot_stride;
    const int32_t* slots;
    int count;

    const Element* row(int j) const { return data + slots[j] * slot_stride; }
};

constexpr int VALUE_VECS = 4;

// Pairs with the last of an odd number of values.
template <class Element>
alignas(CACHE_LINE) static const Element no_value[VALUE_VECS * LANES] = {};

template <class Math, int R, int V, class Unit, class Element>
static inline void value_block(const Unit* weights, int64_t weight_stride, const Values<Element>& values, int column, float* out,
                               int padded_dim) {
    Vec acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = load(out + r * padded_dim + v * LANES);
    for (int j = 0; j < values.count; j += Math::unit_elements, weights++) {
        for (int next = j + VALUES_AHEAD; next < j + VALUES_AHEAD + Math::unit_elements && next < values.count; next++)
            prefetch_row(values.row(next) + column, V * LANES);
        const Element* value = values.row(j) + column;
        const Element* partner = j + 1 < values.count ? values.row(j + 1) + column : no_value<Element>;
        typename Math::UnitVec columns[V];
        for (int v = 0; v < V; v++) columns[v] = Math::units_of(value + v * LANES, partner + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            typename Math::UnitVec weight = broadcast(weights[r * weight_stride]);
            for (int v = 0; v < V; v++) acc[r][v] = Math::multiply_add(acc[r][v], weight, columns[v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(out + r * padded_dim + v * LANES, acc[r][v]);
}

// out[r] += sum over j in order of weights[r][j] * value j; a row of weights is zero behind its last.
template <class Math, class Unit, class Element>
static void add_values(const Unit* weights, int64_t weight_stride, int rows, const Values<Element>& values, float* out, int padded_dim) {
    if (values.count <= 0) return;
    for_row_tiles<VALUE_ROWS>(rows, [&](int first, auto height) {
        const Unit* w = weights + first * weight_stride;
        float* o = out + first * padded_dim;
        int d = 0;
        for (; d + VALUE_VECS * LANES <= padded_dim; d += VALUE_VECS * LANES)
            value_block<Math, height, VALUE_VECS>(w, weight_stride, values, d, o + d, padded_dim);
        for (; d < padded_dim; d += LANES) value_block<Math, height, 1>(w, weight_stride, values, d, o + d, padded_dim);
    });
}

}  // namespace flexspec
