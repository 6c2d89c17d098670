// Rows cut into tiles whose height is a constant of the code that runs them, so that their accumulators are registers.
#pragma once
#include <cstdint>
#include <type_traits>

namespace flexspec {

// run(height) with the height, 1 to MAX, as a constant.
template <int MAX, class Run>
static inline void with_height(int height, Run run) {
    if constexpr (MAX > 1) {
        if (height < MAX) return with_height<MAX - 1>(height, run);
    }
    run(std::integral_constant<int, MAX>{});
}

// run(first, height) for as few tiles of at most MAX rows as there can be, nearly equal in height.
template <int MAX, class Run>
static inline void for_row_tiles(int rows, Run run) {
    int num_tiles = (rows + MAX - 1) / MAX;
    for (int i = 0; i < num_tiles; i++) {
        int first = (int64_t)rows * i / num_tiles, end = (int64_t)rows * (i + 1) / num_tiles;
        with_height<MAX>(end - first, [&](auto height) { run(first, height); });
    }
}

}  // namespace flexspec
