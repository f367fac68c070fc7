// State of a training loop on the device, so that a step needs no data of the host: the batch of a step, its number, and a
// journal of losses and checksums.

typedef unsigned long long word;

// SplitMix64's output function.
__device__ static word mix(word z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#define GOLDEN 0x9e3779b97f4a7c15ull

// The batch of step `*step`: samples of Gaussian clusters, one per row. The stream of numbers is computed by position:
// number i of the stream that starts at s is mix(s + (i + 1) * GOLDEN). Every row takes one
// number for its label and one per feature. Each operation rounds as on a CPU, so that both produce the same bits.
extern "C" __global__ void cluster_batch(const unsigned int* step, word key, const float* centres, float* inputs,
                                         unsigned short* rounded, unsigned int* labels, unsigned int rows,
                                         unsigned int features, unsigned int classes) {
    word state = mix(key ^ mix((word)step[0] + GOLDEN));
    for (unsigned int row = blockIdx.y; row < rows; row += gridDim.y) {
        word before = (word)row * ((word)features + 1);
        unsigned int label = (unsigned int)(((mix(state + (before + 1) * GOLDEN) >> 32) * (word)classes) >> 32);
        if (blockIdx.x == 0 && threadIdx.x == 0) labels[row] = label;
        for (unsigned int col = blockIdx.x * blockDim.x + threadIdx.x; col < features; col += gridDim.x * blockDim.x) {
            word bits = mix(state + (before + 2 + col) * GOLDEN);
            word sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
            float normal = __fmul_rn(__fadd_rn((float)sum, -131070.0f), 1.7320508f / 65536.0f);
            float centre = centres[(size_t)label * features + col];
            float x = __fmul_rn(__fadd_rn(centre, normal), 0.70710678118654752440f);
            size_t i = (size_t)row * features + col;
            inputs[i] = x;
            if (rounded) {
                union { float number; unsigned int bits; } value;
                value.number = x;
                rounded[i] = (unsigned short)((value.bits + 0x7fffu + ((value.bits >> 16) & 1u)) >> 16);
            }
        }
    }
}

// Adds a tensor to a checksum: the sum over its elements of a hash of (tensor, place, bits). Sums of words commute, so
// the order of threads does not matter.
extern "C" __global__ void add_checksum(const float* x, word tensor, word* checksum, size_t n) {
    __shared__ word scratch[256];
    size_t stride = (size_t)gridDim.x * blockDim.x;
    word sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        union { float number; unsigned int bits; } value;
        value.number = x[i];
        sum += mix((tensor << 40 ^ (word)i) * GOLDEN ^ mix((word)value.bits + GOLDEN));
    }
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(checksum, scratch[0]);
}

// The time of the device in ns. Its steps are 32 ns on Hopper, and 1 µs on older devices.
#ifndef GLOBALTIMER
__device__ static word globaltimer() {
    word ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
#define GLOBALTIMER() globaltimer()
#endif

// Occupies its stream for `ns`: a planted delay. One thread.
extern "C" __global__ void injected_delay(word ns) {
    word begin = GLOBALTIMER();
    while (GLOBALTIMER() - begin < ns) {}
}

// Ends a step: writes its loss and checksum into the journal, a ring that the host reads before entries are
// overwritten, and counts the step. One thread.
extern "C" __global__ void end_step(unsigned int* step, const float* loss, word* checksum, float* losses,
                                    word* checksums, unsigned int capacity) {
    unsigned int place = step[0] % capacity;
    losses[place] = loss[0];
    checksums[place] = checksum[0];
    checksum[0] = 0;
    step[0] += 1;
}
