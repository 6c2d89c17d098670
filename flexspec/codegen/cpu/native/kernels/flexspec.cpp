// The C interface of the native executor: create a program, append operators, run a pass.
#include <exception>

#include "attention.h"
#include "experts.h"
#include "linear.h"
#include "top_columns.h"
#include "words.h"

using namespace flexspec;

namespace {

template <template <class> class OpFor, class Float32, class BFloat16, class Args>
void add_typed(void* program, const Args* args) {
    auto* p = static_cast<Program*>(program);
    if (p->is_bf16()) p->add(std::make_unique<OpFor<BFloat16>>(*args));
    else p->add(std::make_unique<OpFor<Float32>>(*args));
}

}  // namespace

extern "C" {

void* flexspec_create(int32_t is_bf16, int32_t num_threads) { return new Program(is_bf16, num_threads); }
void flexspec_destroy(void* program) { delete static_cast<Program*>(program); }

void flexspec_add_embedding(void* program, const FlexspecEmbedding* args) { add_typed<EmbeddingOp, float, bf16>(program, args); }
void flexspec_add_linear(void* program, const FlexspecLinear* args) { add_typed<LinearOp, Float32Math, BFloat16Math>(program, args); }
void flexspec_add_attention(void* program, const FlexspecAttention* args) {
    add_typed<AttentionOp, Float32Math, BFloat16AttentionMath>(program, args);
}
void flexspec_add_normalize(void* program, const FlexspecNormalize* args) {
    static_cast<Program*>(program)->add(std::make_unique<NormOp>(*args));
}
void flexspec_add_map(void* program, const FlexspecMap* args) { static_cast<Program*>(program)->add(std::make_unique<MapOp>(*args)); }
void flexspec_add_gather(void* program, const FlexspecGather* args) {
    static_cast<Program*>(program)->add(std::make_unique<GatherOp>(*args));
}

void flexspec_add_top_experts(void* program, const FlexspecTopExperts* args) {
    static_cast<Program*>(program)->add(std::make_unique<TopExpertsOp>(*args));
}
void flexspec_add_experts(void* program, const FlexspecExperts* args) { add_typed<ExpertsOp, Float32Math, BFloat16Math>(program, args); }

// 0, or -1 when memory ran out; the message of any other failure is the caller's bug and ends the process.
int32_t flexspec_run(void* program, const FlexspecBatch* batch, const FlexspecCache* cache) {
    try {
        static_cast<Program*>(program)->run(*batch, *cache);
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int64_t flexspec_near_columns(const FlexspecTopColumns* args) { return near_columns(*args); }
int64_t flexspec_best_columns(const FlexspecTopColumns* args) { return best_columns(*args); }

// What was written before is there for whoever sees the word's new value.
void flexspec_publish(int64_t* word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
int32_t flexspec_wait(const int64_t* word, int64_t least, int64_t awake_ns, int64_t sleep_ns, int64_t limit_ns) {
    return reached(word, least, awake_ns, sleep_ns, limit_ns);
}

}  // extern "C"
