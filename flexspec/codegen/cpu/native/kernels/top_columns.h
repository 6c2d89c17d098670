// The columns of a row of logits that lie near its maximum.
#pragma once
#include <algorithm>
#include <cfloat>
#include <functional>
#include <utility>
#include <vector>

#include "abi.h"
#include "vector.h"

namespace flexspec {

// Bit i: whether lane i of a is at least that of b; never where there is a NaN.
static inline uint32_t lanes_at_least(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)(a[i] >= b[i]) << i;
    return bits;
#endif
}

// One row at a time; its memory is used again for the next.
class TopColumns {
   public:
    // The row's maximum, NaN if there is one in it; what is near is found with `find`.
    float read(const float* row, int cols) {
        row_ = row, cols_ = cols;
        Vec most = broadcast(-INFINITY);
        IntVec nans = {};
        for (int c = 0; c < cols; c += LANES) {
            // Lanes past the last column repeat the first one.
            int n = part(c, cols);
            Vec v = n == LANES ? load(row + c) : iota() < n ? load_part(row + c, n) : broadcast(row[0]);
            nans |= v != v;
            most = maximum(v, most);
        }
        bool has_nan = false;
        for (int i = 0; i < LANES; i++) has_nan |= nans[i] != 0;
        return peak_ = has_nan ? NAN : max_lanes(most);
    }

    // Ascending columns within `spread` times the temperature of the maximum; if they are fewer than `fewest`, within 2, 4, ...
    // times as much, until there are so many or all that are above minus infinity; if more than `most`, as many and those that
    // equal the last of them. The maximum is finite.
    const std::vector<int32_t>& find(double spread, double temperature, int fewest, int most) {
        collect(floor_at(spread, temperature));
        if ((int)columns_.size() < fewest) {
            int allowed = 0;
            for (int c = 0; c < cols_; c++) allowed += row_[c] > -INFINITY;
            fewest = std::min(fewest, allowed);
            while ((int)columns_.size() < fewest) {
                spread *= 2;
                collect(spread > WHOLE_SPREAD ? -FLT_MAX : floor_at(spread, temperature));
            }
        }
        if ((int)columns_.size() > most) {
            likely_.clear();
            for (int32_t column : columns_) likely_.push_back(row_[column]);
            std::nth_element(likely_.begin(), likely_.begin() + (most - 1), likely_.end(), std::greater<float>());
            float last = likely_[most - 1];
            columns_.erase(std::remove_if(columns_.begin(), columns_.end(), [&](int32_t c) { return row_[c] < last; }), columns_.end());
        }
        return columns_;
    }

    double score(int32_t column, double temperature) const { return ((double)row_[column] - (double)peak_) / temperature; }

   private:
    static constexpr double WHOLE_SPREAD = 1e6;

    float floor_at(double spread, double temperature) const {
        return (float)std::max((double)peak_ - spread * temperature, (double)-FLT_MAX);
    }

    void collect(float floor) {
        columns_.clear();
        for (int c = 0; c < cols_; c += LANES) {
            int n = part(c, cols_);
            uint32_t bits = lanes_at_least(load_part(row_ + c, n), broadcast(floor)) & ((1u << n) - 1);
            for (; bits; bits &= bits - 1) columns_.push_back(c + __builtin_ctz(bits));
        }
    }

    const float* row_ = nullptr;
    int cols_ = 0;
    float peak_ = 0;
    std::vector<float> likely_;
    std::vector<int32_t> columns_;
};

// Every row's maximum, and the ids of the columns that `TopColumns` finds, with their scores: [0] less the maximum by temperature.
// Returns how many there are; those beyond the capacity are not written. A row without a finite maximum has its first column.
static inline int64_t near_columns(const FlexspecTopColumns& a) {
    thread_local TopColumns top;
    int64_t count = 0;
    for (int r = 0; r < a.rows; r++) {
        a.bounds[r] = count;
        a.peaks[r] = top.read(a.values + r * a.stride, a.cols);
        static const std::vector<int32_t> first{0};
        bool is_finite = std::isfinite(a.peaks[r]);
        for (int32_t c : is_finite ? top.find(a.spread, a.temperatures[r], a.fewest[r], a.most[r]) : first) {
            if (count < a.capacity) {
                a.ids[count] = a.token_ids ? a.token_ids[c] : c;
                a.scores[count] = is_finite ? top.score(c, a.temperatures[r]) : 0.0;
            }
            count++;
        }
    }
    return a.bounds[a.rows] = count;
}

// The first `fewest` of these in each row, the highest score and the lowest id first, with their shares of a softmax of the
// row's scores instead of the scores.
static inline int64_t best_columns(const FlexspecTopColumns& a) {
    thread_local TopColumns top;
    thread_local std::vector<std::pair<double, int32_t>> scored;
    int64_t count = 0;
    for (int r = 0; r < a.rows; r++) {
        a.bounds[r] = count;
        a.peaks[r] = top.read(a.values + r * a.stride, a.cols);
        if (!std::isfinite(a.peaks[r])) continue;
        scored.clear();
        double total = 0;
        for (int32_t c : top.find(a.spread, a.temperatures[r], a.fewest[r], a.most[r])) {
            scored.emplace_back(-top.score(c, a.temperatures[r]), c);
            total += std::exp(-scored.back().first);
        }
        int best = std::min<int>(a.fewest[r], scored.size());
        std::partial_sort(scored.begin(), scored.begin() + best, scored.end());
        for (int i = 0; i < best; i++, count++) {
            if (count >= a.capacity) continue;
            a.ids[count] = a.token_ids ? a.token_ids[scored[i].second] : scored[i].second;
            a.scores[count] = std::exp(-scored[i].first) / total;
        }
    }
    return a.bounds[a.rows] = count;
}

}  // namespace flexspec
