// CUDA's dialect for a C++ compiler: each CUDA thread is a fibre with a stack of its own.
//
// The scheduler (emulator.cpp) runs one fibre until it meets others (a barrier, a warp function) or
// until an atomic operation gives way, and then picks the next one at random by the seed of the
// launch. Several blocks are alive at once. What depends on an order that CUDA does not promise
// therefore gives different results under different seeds.
//
// Reported as errors of the launch: a barrier that some threads of a block never reach, threads
// that meet in different barriers, lanes that call a warp function whose mask leaves them out, lanes
// that meet in different functions under one mask, a shuffle from a lane outside of the mask, a
// write behind the end of shared memory, and more threads than a kernel was compiled for.
//
// Not seen: data races between fibres that no schedule reorders (a plain load between two plain
// stores of another thread), registers, occupancy and the cost of memory accesses.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace zn {

struct Index3 {
  unsigned x, y, z;
};

// What a fibre knows of itself. `current` points to the running fibre's.
struct Thread {
  Index3 thread, block, threads, blocks;
  unsigned number;  // the thread's number in its block
};
extern thread_local Thread* current;

// The functions of a warp, so that two that meet under one mask can be told apart.
enum Function { SHUFFLE, SHUFFLE_XOR, SHUFFLE_DOWN, BALLOT, SYNC };

[[noreturn]] void fail(const char* text);
void give_way();
void meet_block(const char* file, int line);
// Waits for all lanes of `mask` and returns their values, which stay valid until `leave_warp`.
const uint64_t* meet_warp(unsigned mask, Function function, int line, uint64_t value);
void leave_warp();
void* shared_memory(const void* site, size_t bytes, const char* name);
void* dynamic_memory();
void copy_later(void* to, const void* from, unsigned live, unsigned bytes);
void commit_copies();
void wait_copies(unsigned pending);

typedef void (*Body)(const void* parameters);
struct Register {
  Register(const char* name, size_t bytes, unsigned threads, Body body);
};

template <class T> inline uint64_t pack(T value) {
  static_assert(sizeof(T) <= 8, "warp functions take values of at most eight bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T> inline T unpack(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned lane() { return current->number & 31; }

template <class T> inline T shuffle(unsigned mask, T value, unsigned from, Function function, int line) {
  const uint64_t* values = meet_warp(mask, function, line, pack(value));
  if (from > 31 || !(mask >> from & 1)) fail("a shuffle reads a lane outside of its mask");
  const T result = unpack<T>(values[from]);
  leave_warp();
  return result;
}
inline unsigned ballot(unsigned mask, bool vote, int line) {
  const uint64_t* values = meet_warp(mask, BALLOT, line, vote);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; i++)
    if (mask >> i & 1) result |= (unsigned)values[i] << i;
  leave_warp();
  return result;
}
inline void sync_warp(unsigned mask, int line) {
  meet_warp(mask, SYNC, line, 0);
  leave_warp();
}

}  // namespace zn

#define KERNEL(name, Parameters, threads, blocks)                                            \
  static void name(const Parameters& p);                                                     \
  static const zn::Register name##_entry(#name, sizeof(Parameters), threads,                 \
                                         [](const void* p) { name(*(const Parameters*)p); }); \
  static void name(const Parameters& p)
#define DEVICE static inline __attribute__((always_inline, unused))
#define LAMBDA [&]
#define SHARED(Type, name, count)      \
  static const char name##_site = 0;   \
  Type* const name = (Type*)zn::shared_memory(&name##_site, sizeof(Type) * (count), #name)
#define DYNAMIC_SHARED(Type, name) Type* const name = (Type*)zn::dynamic_memory()
#define UNROLL
#define NO_UNROLL
#define OPAQUE(x) ((void)0)
#define __restrict__ __restrict

#define threadIdx (zn::current->thread)
#define blockIdx (zn::current->block)
#define blockDim (zn::current->threads)
#define gridDim (zn::current->blocks)

#define __syncthreads() zn::meet_block(__FILE__, __LINE__)
#define __syncwarp(mask) zn::sync_warp(mask, __LINE__)
#define __shfl_sync(mask, value, from) zn::shuffle(mask, value, (from) & 31, zn::SHUFFLE, __LINE__)
#define __shfl_xor_sync(mask, value, by) zn::shuffle(mask, value, zn::lane() ^ (by), zn::SHUFFLE_XOR, __LINE__)
#define __shfl_down_sync(mask, value, by) zn::shuffle(mask, value, zn::lane() + (by), zn::SHUFFLE_DOWN, __LINE__)
#define __ballot_sync(mask, vote) zn::ballot(mask, vote, __LINE__)
#define __any_sync(mask, vote) (zn::ballot(mask, vote, __LINE__) != 0)

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float root(float x) { return __builtin_sqrtf(x); }
DEVICE double root(double x) { return __builtin_sqrt(x); }
DEVICE float from_bits(unsigned x) { return zn::unpack<float>(x); }
DEVICE unsigned to_bits(float x) { return (unsigned)zn::pack(x); }
DEVICE float magnitude(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }
DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
DEVICE int __ffs(unsigned x) { return __builtin_ffs((int)x); }
DEVICE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

// An asynchronous copy happens when its thread waits for it, and not before.
DEVICE void copy4_async(float* to, const float* from, bool live) { zn::copy_later(to, from, live ? 4 : 0, 4); }
DEVICE void copy16_async(float* to, const float* from, unsigned bytes) {
  if ((uintptr_t)to & 15 || (bytes && (uintptr_t)from & 15)) zn::fail("a copy of 16 bytes between unaligned places");
  zn::copy_later(to, from, bytes, 16);
}
DEVICE void commit_copies() { zn::commit_copies(); }
template <int Pending> DEVICE void wait_copies() { zn::wait_copies(Pending); }

template <class T> DEVICE T read_only(const T* from) {
  if ((uintptr_t)from & (sizeof(T) - 1)) zn::fail("an unaligned read");
  return *from;
}
template <class T> DEVICE void store_streaming(T* to, T value) { *to = value; }

// Atomic operations give way now and then, before they take effect. Those of floats are missing
// on purpose.
#define ZN_ATOMIC(name, Type, builtin)                  \
  DEVICE Type name(Type* at, Type value) {              \
    zn::give_way();                                     \
    return builtin(at, value, __ATOMIC_RELAXED);        \
  }
ZN_ATOMIC(atomicAdd, unsigned, __atomic_fetch_add)
ZN_ATOMIC(atomicAdd, unsigned long long, __atomic_fetch_add)
ZN_ATOMIC(atomicOr, unsigned, __atomic_fetch_or)
ZN_ATOMIC(atomicAnd, unsigned, __atomic_fetch_and)
ZN_ATOMIC(atomicExch, unsigned, __atomic_exchange_n)
#undef ZN_ATOMIC
DEVICE unsigned atomicMax(unsigned* at, unsigned value) {
  zn::give_way();
  const unsigned old = *at;
  if (value > old) *at = value;
  return old;
}
DEVICE unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  zn::give_way();
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
