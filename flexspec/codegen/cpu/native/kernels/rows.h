// Token-wise operators other than linears: norms, activations, gates, arithmetic, embedding, row gather.
#pragma once
#include "program.h"
#include "vector.h"

namespace flexspec {

static inline Vec silu(Vec x) { return x / (exp(-x) + 1.0f); }

static inline Vec activate(int32_t kind, Vec x) {
    switch (kind) {
        case ACT_SILU:
            return silu(x);
        case ACT_GELU: {
            Vec out;
            for (int i = 0; i < LANES; i++) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
            return out;
        }
        case ACT_GELU_TANH: {
            // x (1 + tanh u) / 2 = x / (1 + e^-2u)
            Vec u = fma(x * x * x, broadcast(0.044715f), x) * 0.79788456f;
            return x / (exp(u * -2.0f) + 1.0f);
        }
        case ACT_RELU:
            return maximum(x, Vec{});
        case ACT_RELU_SQUARED: {
            Vec positive = maximum(x, Vec{});
            return positive * positive;
        }
        case ACT_TANH:
            return tanh(x);
        case ACT_EXPM1:
            return expm1(x);
        case ACT_SIGMOID:
            return 1.0f / (exp(-x) + 1.0f);
    }
    return x;
}

struct NormSpec {
    int32_t kind;
    const float* weight;  // padded with zeros to whole vectors, as is bias
    const float* bias;
    float eps;
};

// Lane l of accumulator a sums the columns (4 n + a) LANES + l: one order whatever the rows.
template <class Term>
static inline float sum_columns(int cols, Term term) {
    Vec sums[4] = {};
    for (int c = 0, a = 0; c < cols; c += LANES, a = (a + 1) % 4) sums[a] += term(c, part(c, cols));
    return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// With `padded`, out is written in whole vectors, zeros after the last column.
template <bool padded, class T>
static void norm_row(const NormSpec& spec, const float* x, T* out, int cols) {
    Vec mean = {};
    Vec inverse;
    if (spec.kind == NORM_LAYER) {
        float total = sum_columns(cols, [&](int c, int n) { return load_part(x + c, n); });
        mean = broadcast(total / cols);
        float squares = sum_columns(cols, [&](int c, int n) {
            Vec d = load_part(x + c, n) - mean;
            d = iota() < n ? d : Vec{};
            return d * d;
        });
        inverse = broadcast(1.0f / std::sqrt(squares / cols + spec.eps));
    } else {
        float squares = sum_columns(cols, [&](int c, int n) {
            Vec v = load_part(x + c, n);
            return v * v;
        });
        inverse = broadcast(1.0f / std::sqrt(squares / cols + spec.eps));
    }
    for (int c = 0; c < cols; c += LANES) {
        int n = part(c, cols);
        Vec v = (load_part(x + c, n) - mean) * inverse * load(spec.weight + c);
        if (spec.bias) v += load(spec.bias + c);
        if (padded) store(out + c, v);
        else store_part(out + c, v, n);
    }
}

// Operators whose tasks are blocks of rows, about 4,096 elements each.
class RowOp : public Op {
   public:
    RowOp(int32_t rows, int cols) : rows_(rows), block_(std::max(1, 4096 / cols)) {}

    int num_tasks(const Pass& pass, int) const override { return (pass.rows(rows_) + block_ - 1) / block_; }

    void work(const Pass& pass, int, int task, char*, char*) const override {
        int end = std::min(pass.rows(rows_), (task + 1) * block_);
        for (int row = task * block_; row < end; row++) work_row(pass, row);
    }

   protected:
    virtual void work_row(const Pass& pass, int row) const = 0;

   private:
    int32_t rows_;
    int block_;
};

class NormOp : public RowOp {
   public:
    explicit NormOp(const FlexspecNormalize& args) : RowOp(args.rows, args.cols), a_(args) {}

   protected:
    void work_row(const Pass&, int row) const override {
        NormSpec spec{a_.kind, a_.weight, a_.bias, a_.eps};
        int size = a_.cols / a_.groups;
        for (int g = 0; g < a_.groups; g++)
            norm_row<false>(spec, a_.x.data + row * a_.x.stride + g * size, a_.out.data + row * a_.out.stride + g * size, size);
    }

   private:
    FlexspecNormalize a_;
};

class MapOp : public RowOp {
   public:
    explicit MapOp(const FlexspecMap& args) : RowOp(args.rows, args.cols), m_(args) {}

   protected:
    void work_row(const Pass&, int row) const override {
        const float* a = m_.a.data + row * m_.a.stride;
        const float* b = m_.b.data ? m_.b.data + row * m_.b.stride : a;
        const float* other = m_.c.data ? m_.c.data + row * m_.c.stride : a;
        float* out = m_.out.data + row * m_.out.stride;
        for (int c = 0; c < m_.cols; c += LANES) {
            int n = part(c, m_.cols);
            Vec second = m_.b_cols == 1 ? broadcast(*b) : load_part(b + c, n);
            store_part(out + c, apply(load_part(a + c, n), second, load_part(other + c, n)), n);
        }
    }

   private:
    Vec apply(Vec a, Vec b, Vec c) const {
        switch (m_.kind) {
            case EW_GATE:
                return activate(m_.activation, a) * b;
            case EW_ACTIVATION:
                return activate(m_.activation, a);
            case EW_ADD:
                return a + b;
            case EW_MUL:
                return a * b;
            case EW_SUB:
                return a - b;
            case EW_DIV:
                return a / b;
            case EW_GREATER:
                return a > broadcast(m_.scalar) ? broadcast(1.0f) : Vec{};
            case EW_WHERE:
                return a != Vec{} ? b : c;
            case EW_ADD_SCALAR:
                return a + m_.scalar;
            case EW_MUL_SCALAR:
                return a * m_.scalar;
            case EW_CLAMP:
                return minimum(maximum(a, broadcast(m_.scalar)), broadcast(m_.high));
            default:
                return a;
        }
    }

    FlexspecMap m_;
};

template <class T>
class EmbeddingOp : public RowOp {
   public:
    explicit EmbeddingOp(const FlexspecEmbedding& args) : RowOp(ROWS_TOKENS, args.cols), a_(args) {}

   protected:
    void work_row(const Pass& pass, int row) const override {
        const T* source = static_cast<const T*>(a_.table) + pass.batch.token_ids[row] * a_.cols;
        float* out = a_.out.data + row * a_.out.stride;
        for (int c = 0; c < a_.cols; c += LANES) {
            int n = part(c, a_.cols);
            store_part(out + c, load_part(source + c, n), n);
        }
    }

   private:
    FlexspecEmbedding a_;
};

class GatherOp : public RowOp {
   public:
    explicit GatherOp(const FlexspecGather& args) : RowOp(ROWS_OUTPUTS, args.cols), a_(args) {}

   protected:
    void work_row(const Pass& pass, int row) const override {
        const float* source = a_.x.data + pass.batch.output_rows[row] * a_.x.stride;
        std::memcpy(a_.out.data + row * a_.out.stride, source, a_.cols * sizeof(float));
    }

   private:
    FlexspecGather a_;
};

}  // namespace flexspec
