// Plain C structures shared with Python; structures.py mirrors them field by field.
#pragma once
#include <cstdint>

extern "C" {

enum FlexspecRows : int32_t { ROWS_TOKENS = 0, ROWS_OUTPUTS = 1 };
enum FlexspecActivation : int32_t { ACT_NONE = 0, ACT_SILU = 1, ACT_GELU = 2, ACT_GELU_TANH = 3, ACT_RELU = 4,
                                     ACT_CLAMPED_SWISH = 5, ACT_TANH = 6, ACT_SIGMOID = 7, ACT_RELU_SQUARED = 8, ACT_EXPM1 = 9 };
enum FlexspecNorm : int32_t { NORM_RMS = 0, NORM_LAYER = 1 };
enum FlexspecPrologue : int32_t { PROLOGUE_NONE = 0, PROLOGUE_RMS = 1, PROLOGUE_LAYER = 2, PROLOGUE_GATE = 3 };
enum FlexspecElementwise : int32_t { EW_GATE, EW_ACTIVATION, EW_ADD, EW_MUL, EW_ADD_SCALAR, EW_MUL_SCALAR, EW_COPY, EW_CLAMP,
                                      EW_SUB, EW_DIV, EW_GREATER, EW_WHERE };

// Row r, column c of a float32 matrix lies at data[r * stride + c].
struct FlexspecMatrix {
    float* data;
    int64_t stride;
};

struct FlexspecEmbedding {
    FlexspecMatrix out;
    const void* table;
    int32_t cols;
};

// out = residual + act(prologue(x) W^T + bias); with PROLOGUE_GATE x is the gate and `up` its partner.
struct FlexspecLinear {
    FlexspecMatrix x, up, out, residual;
    const void* weight;
    const float* bias;
    const float* norm_weight;
    const float* norm_bias;
    float eps;
    int32_t in_features, out_features, activation, prologue, prologue_activation, rows;
};

struct FlexspecNormalize {
    FlexspecMatrix x, out;
    const float* weight;
    const float* bias;
    float eps;
    int32_t kind, cols, groups, rows;
};

struct FlexspecAttention {
    FlexspecMatrix q, k, v, out, cos, sin;
    const float* slopes;  // [num_heads]; null: none
    const float* sinks;   // likewise: a further logit of each head, whose value is zero
    float scale, softcap;  // softcap 0: none
    int32_t num_heads, num_kv_heads, head_dim, layer, window;  // window 0: none
    int32_t rotary_dim, interleaved;  // rotary_dim 0: none; interleaved: pairs are adjacent elements
};

// b may have one row for all (a stride of 0), or with b_cols = 1 one column for all.
struct FlexspecMap {
    FlexspecMatrix a, b, c, out;  // c: of EW_WHERE, where a is zero
    float scalar, high;           // high: of EW_CLAMP, whose lower bound is the scalar
    int32_t kind, activation, cols, b_cols, rows;
};

struct FlexspecGather {
    FlexspecMatrix x, out;
    int32_t cols;
};

// A row of weights and ids for each row of logits [num_experts].
struct FlexspecTopExperts {
    FlexspecMatrix logits, weights, ids;
    int32_t num_experts, top_k, normalised, rows;
};

// Row r: the sum over j of weights[r][j] * expert ids[r][j] of x[r]; an expert is down(activation(gate x) * up x), with biases if given.
struct FlexspecExperts {
    FlexspecMatrix x, ids, weights, out;
    const void* gate_up;        // [experts, panels, units, 32]: in a panel 16 columns of the gate, then the same of up
    const void* down;           // [experts, panels, units, 32]
    const float* gate_up_bias;  // [experts, panels, 32]
    const float* down_bias;     // [experts, panels, 32]
    float alpha, limit;         // of ACT_CLAMPED_SWISH
    int32_t num_experts, top_k, hidden, inner, activation, rows;
};

struct FlexspecBatch {
    const int64_t* token_ids;
    const int64_t* positions;
    const int32_t* request_rows;
    const int32_t* slots;
    const int32_t* context_lens;
    const int32_t* tail_starts;
    const int32_t* tail_bits;
    const int32_t* block_tables;
    const int32_t* output_rows;
    int32_t num_tokens, num_outputs, tail_words, blocks_per_request;
};

// Slot s of layer l starts at element (l * num_slots + s) * num_kv_heads * padded_head_dim.
struct FlexspecCache {
    void* keys;
    void* values;
    int64_t num_slots;
    int32_t num_kv_heads, padded_head_dim, block_size;
};

// What is sought in rows of logits, and where it goes; row r starts at values[r * stride].
struct FlexspecTopColumns {
    const float* values;
    int64_t stride;
    const int64_t* token_ids;  // of the columns; null: 0, 1, 2, ...
    const double* temperatures;
    const int32_t* fewest;
    const int32_t* most;
    double* peaks;
    int64_t* bounds;  // rows + 1
    int64_t* ids;
    double* scores;
    int64_t capacity;  // of ids and scores
    double spread;
    int32_t rows, cols;
};

}  // extern "C"
