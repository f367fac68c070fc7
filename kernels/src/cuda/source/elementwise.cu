// Element-wise operations on row-major matrices and vectors. operation.rs defines each.
//
// A `rounded` pointer that is not null also gets the result as bfloat16 (round to nearest even), for the products that
// read it next. No header is included, so that NVRTC needs none.

__device__ static unsigned short round_bf16(float x) {
    union { float number; unsigned int bits; } value;
    value.number = x;
    // A NaN must not be rounded into an infinity.
    if ((value.bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((value.bits >> 16) | 0x0040u);
    return (unsigned short)((value.bits + 0x7fffu + ((value.bits >> 16) & 1u)) >> 16);
}

// NaN stays NaN, so that a diverged model is visible.
extern "C" __global__ void bias_relu(float* x, const float* bias, unsigned short* rounded, unsigned int rows,
                                     unsigned int cols) {
    unsigned int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float b = bias[col];
    for (unsigned int row = blockIdx.y; row < rows; row += gridDim.y) {
        size_t i = (size_t)row * cols + col;
        float sum = x[i] + b;
        float y = sum <= 0.0f ? 0.0f : sum;
        x[i] = y;
        if (rounded) rounded[i] = round_bf16(y);
    }
}

extern "C" __global__ void bias_add(float* x, const float* bias, unsigned short* rounded, unsigned int rows,
                                    unsigned int cols) {
    unsigned int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float b = bias[col];
    for (unsigned int row = blockIdx.y; row < rows; row += gridDim.y) {
        size_t i = (size_t)row * cols + col;
        float sum = x[i] + b;
        x[i] = sum;
        if (rounded) rounded[i] = round_bf16(sum);
    }
}

extern "C" __global__ void fill(float* x, float value, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = value;
}

extern "C" __global__ void to_bf16(const float* x, unsigned short* rounded, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) rounded[i] = round_bf16(x[i]);
}

extern "C" __global__ void bucket_pack(const float* tensor, float* bucket, size_t offset, float scale, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        bucket[offset + i] = scale * tensor[i];
}

extern "C" __global__ void bucket_unpack(const float* bucket, float* tensor, size_t offset, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) tensor[i] = bucket[offset + i];
}

extern "C" __global__ void sgd_momentum(float* parameter, const float* gradient, float* velocity,
                                        unsigned short* rounded, float learning_rate, float momentum, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        float v = momentum * velocity[i] + gradient[i];
        float w = parameter[i] - learning_rate * v;
        velocity[i] = v;
        parameter[i] = w;
        if (rounded) rounded[i] = round_bf16(w);
    }
}
