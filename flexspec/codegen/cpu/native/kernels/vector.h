// The machine's widest float vector, bfloat16 conversion, and the few functions the kernels need of both.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace flexspec {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef uint32_t UintVec __attribute__((vector_size(LANES * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(LANES * 2)));

struct bf16 {
    uint16_t bits;
};

template <class To, class From>
static inline To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static inline Vec broadcast(float x) { return x - Vec{}; }
static inline IntVec broadcast(int32_t x) { return x - IntVec{}; }

static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// The instructions where there are some: compilers compare and blend instead. A NaN yields b in all forms.
static inline Vec maximum(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

static inline Vec minimum(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return a < b ? a : b;
#endif
}

static inline IntVec iota() {
    IntVec out;
    for (int i = 0; i < LANES; i++) out[i] = i;
    return out;
}

// Round to nearest even; NaN stays NaN.
static inline HalfVec to_bf16(Vec x) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
    return (HalfVec)_mm512_cvtneps_pbh((__m512)x);
#else
    IntVec bits = bit_cast<IntVec>(x);
    IntVec rounded = bits + 0x7fff + ((bits >> 16) & 1);
    rounded = x == x ? rounded : broadcast((int32_t)0x7fc00000);
    return __builtin_convertvector((UintVec)rounded >> 16, HalfVec);
#endif
}

static inline Vec from_bf16(HalfVec h) {
#if defined(__AVX512F__)
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__)
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return bit_cast<Vec>(__builtin_convertvector(h, IntVec) << 16);
#endif
}

template <class V>
static inline V load_bytes(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline Vec load(const float* p) { return load_bytes<Vec>(p); }
static inline Vec load(const bf16* p) { return from_bf16(load_bytes<HalfVec>(p)); }
static inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
static inline void store(bf16* p, Vec v) {
    HalfVec h = to_bf16(v);
    std::memcpy(p, &h, sizeof h);
}

// The first n lanes, n <= LANES; the others read as zero and are not written.
template <class T>
static inline Vec load_part(const T* p, int n) {
    if (n == LANES) return load(p);
    T lanes[LANES] = {};
    std::memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}

template <class T>
static inline void store_part(T* p, Vec v, int n) {
    if (n == LANES) return store(p, v);
    T lanes[LANES];
    store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(T));
}

static inline int part(int i, int n) { return n - i < LANES ? n - i : LANES; }
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One fixed tree over the lanes.
static inline float sum_lanes(Vec v) {
    float lanes[LANES];
    store(lanes, v);
    for (int h = LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++) lanes[i] += lanes[i + h];
    return lanes[0];
}

static inline float max_lanes(Vec v) {
    float out = v[0];
    for (int i = 1; i < LANES; i++) out = v[i] > out ? v[i] : out;
    return out;
}

// (e^x - 1) / x for small x: the Taylor series of e^x to x^7.
static inline Vec expm1_ratio(Vec x) {
    Vec p = broadcast(1.0f / 5040);
    p = fma(p, x, broadcast(1.0f / 720));
    p = fma(p, x, broadcast(1.0f / 120));
    p = fma(p, x, broadcast(1.0f / 24));
    p = fma(p, x, broadcast(1.0f / 6));
    p = fma(p, x, broadcast(0.5f));
    return fma(p, x, broadcast(1.0f));
}

// e^x to about 1e-7 relative; x is clamped to [-86.6, 88.3], so that results stay normal.
static inline Vec exp(Vec x) {
    x = minimum(maximum(x, broadcast(-86.6f)), broadcast(88.3f));
    // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low mantissa bits.
    const Vec shifter = broadcast(12582912.0f);
    Vec shifted = fma(x, broadcast(1.44269504f), shifter);
    Vec n = shifted - shifter;
    Vec r = fma(n, broadcast(-0.693145752f), x);
    r = fma(n, broadcast(-1.42860677e-6f), r);
    Vec p = fma(expm1_ratio(r), r, broadcast(1.0f));
    return bit_cast<Vec>(bit_cast<IntVec>(p) + (bit_cast<IntVec>(shifted) << 23));
}

// e^x - 1; infinite from 88.3 on.
static inline Vec expm1(Vec x) {
    Vec far = x > 88.3f ? broadcast(INFINITY) : exp(x) - 1.0f;
    return x * x < 0.09f ? expm1_ratio(x) * x : far;  // near zero exp(x) - 1 cancels
}

static inline Vec tanh(Vec x) {
    Vec e = exp(x + x);
    Vec far = (e - 1.0f) / (e + 1.0f);
    Vec x2 = x * x;
    // Near zero e - 1 cancels: the odd Taylor series to x^9 instead.
    Vec p = fma(x2, broadcast(62.0f / 2835), broadcast(-17.0f / 315));
    p = fma(p, x2, broadcast(2.0f / 15));
    p = fma(p, x2, broadcast(-1.0f / 3));
    Vec near = fma(p * x2, x, x);
    return x2 < 0.04f ? near : far;
}

}  // namespace flexspec
