// Operations that sum: bias gradients and the loss. Every sum has a fixed order, so that a step computed twice gives the
// same bits.

#define COLUMNS 32
#define LANES 8
#define THREADS 128

__device__ static unsigned short round_bf16(float x) {
    union { float number; unsigned int bits; } value;
    value.number = x;
    if ((value.bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((value.bits >> 16) | 0x0040u);
    return (unsigned short)((value.bits + 0x7fffu + ((value.bits >> 16) & 1u)) >> 16);
}

// Sums of columns over this block's share of the rows; blockDim is (COLUMNS, LANES), blockIdx.y counts shares.
// If `y` is null, nothing is masked and `gradient` is not written.
extern "C" __global__ void column_sums(const float* y, float* gradient, unsigned short* rounded, float* partial,
                                       unsigned int rows, unsigned int cols, unsigned int rows_per_share) {
    __shared__ float sums[LANES][COLUMNS];
    unsigned int col = blockIdx.x * COLUMNS + threadIdx.x;
    unsigned int first = blockIdx.y * rows_per_share;
    unsigned int last = first + rows_per_share;
    if (last > rows) last = rows;
    float sum = 0.0f;
    if (col < cols) {
        for (unsigned int row = first + threadIdx.y; row < last; row += LANES) {
            size_t i = (size_t)row * cols + col;
            float g = gradient[i];
            if (y) {
                g = y[i] > 0.0f ? g : 0.0f;
                gradient[i] = g;
            }
            if (rounded) rounded[i] = round_bf16(g);
            sum += g;
        }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < cols) {
        float total = 0.0f;
        for (unsigned int lane = 0; lane < LANES; lane++) total += sums[lane][threadIdx.x];
        partial[(size_t)blockIdx.y * cols + col] = total;
    }
}

extern "C" __global__ void sum_partials(const float* partial, float* sums, unsigned int shares, unsigned int cols) {
    unsigned int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float total = 0.0f;
    for (unsigned int share = 0; share < shares; share++) total += partial[(size_t)share * cols + col];
    sums[col] = total;
}

// One block of THREADS per row: the gradient, and the row's loss in f64, because a row is short and its sum decides.
extern "C" __global__ void cross_entropy_rows(const float* logits, const unsigned int* labels, double* losses,
                                              float* gradient, unsigned short* rounded, unsigned int rows,
                                              unsigned int classes) {
    __shared__ double scratch[THREADS];
    unsigned int row = blockIdx.x;
    const float* z = logits + (size_t)row * classes;
    double largest = -1.7976931348623157e308;  // the lowest, which needs no header
    for (unsigned int i = threadIdx.x; i < classes; i += THREADS) largest = fmax(largest, (double)z[i]);
    scratch[threadIdx.x] = largest;
    __syncthreads();
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] = fmax(scratch[threadIdx.x], scratch[threadIdx.x + half]);
        __syncthreads();
    }
    largest = scratch[0];
    __syncthreads();
    double sum = 0.0;
    for (unsigned int i = threadIdx.x; i < classes; i += THREADS) sum += exp((double)z[i] - largest);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    sum = scratch[0];
    unsigned int label = labels[row];
    double share = 1.0 / (double)rows;
    for (unsigned int i = threadIdx.x; i < classes; i += THREADS) {
        double one_hot = i == label ? 1.0 : 0.0;
        float g = (float)((exp((double)z[i] - largest) / sum - one_hot) * share);
        size_t at = (size_t)row * classes + i;
        gradient[at] = g;
        if (rounded) rounded[at] = round_bf16(g);
    }
    if (threadIdx.x == 0) losses[row] = log(sum) - ((double)z[label] - largest);
}

// One block of THREADS: the mean over rows.
extern "C" __global__ void mean_loss(const double* losses, float* loss, unsigned int rows) {
    __shared__ double scratch[THREADS];
    double sum = 0.0;
    for (unsigned int row = threadIdx.x; row < rows; row += THREADS) sum += losses[row];
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) loss[0] = (float)(scratch[0] / (double)rows);
}
