// Sums of products over units of 4 bytes: a float32, or a pair of bfloat16 neighbours in what is summed over.
#pragma once
#include "vector.h"

namespace flexspec {

struct Float32Math {
    using Element = float;  // of what is stored: weights, keys, values
    using Operand = float;  // of what they are multiplied with
    using Unit = float;
    using UnitVec = Vec;
    static constexpr int unit_elements = 1;
    // Rows of a linear's tile: as many as keep the accumulators in registers.
    static constexpr int max_height = LANES == 16 ? 14 : LANES == 8 ? 3 : 2;
    static int units(int k) { return k; }
    static Vec multiply_add(Vec acc, UnitVec x, UnitVec w) { return fma(x, w, acc); }
    static UnitVec units_of(const float* row, const float*) { return load(row); }
    template <int N>
    static UnitVec load_units(const float* row) {
        return load(row);
    }
};

struct BFloat16Math {
    using Element = bf16;
    using Operand = bf16;
    using Unit = int32_t;
    using UnitVec = IntVec;
    static constexpr int unit_elements = 2;
    // Without an instruction for pairs, widening the weights costs more than spilling an accumulator does.
    static constexpr int max_height = LANES == 16 ? 14 : LANES == 8 ? 4 : 2;
    static int units(int k) { return (k + 1) / 2; }
    static Vec multiply_add(Vec acc, UnitVec x, UnitVec w) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
        return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w);
#else
        acc = fma(bit_cast<Vec>(x << 16), bit_cast<Vec>(w << 16), acc);
        return fma(bit_cast<Vec>(x & (int32_t)0xffff0000), bit_cast<Vec>(w & (int32_t)0xffff0000), acc);
#endif
    }
    // LANES units, each of one element of either row.
    static UnitVec units_of(const bf16* row, const bf16* next_row) {
        return bit_cast<IntVec>((UintVec)bit_cast<IntVec>(load(row)) >> 16) | bit_cast<IntVec>(load(next_row));
    }
    // Lanes from N on are zero.
    template <int N>
    static UnitVec load_units(const bf16* row) {
        UnitVec units = {};
        std::memcpy(&units, row, N * sizeof(Unit));
        return units;
    }
};

// bfloat16 widened as it is loaded.
struct WidenedMath : Float32Math {
    using Element = bf16;
    static UnitVec units_of(const bf16* row, const bf16*) { return load(row); }
    template <int N>
    static UnitVec load_units(const bf16* row) {
        return load(row);
    }
};

// Without an instruction for pairs, attention would widen the same keys and values once for each few rows.
#if defined(__AVX512BF16__) && defined(__AVX512F__)
using BFloat16AttentionMath = BFloat16Math;
#else
using BFloat16AttentionMath = WidenedMath;
#endif

}  // namespace flexspec
