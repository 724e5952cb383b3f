// The scheduler of the emulator, and all kernels as C++.
//
// The kernels are included at the end, so that their registrations are linked wherever a launch is. A
// launch belongs to the thread of the operating system that makes it: launches on different
// threads share nothing.

#include "emulator.h"

#include <sys/mman.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace zn {

thread_local Thread* current = nullptr;

namespace {

const size_t STACK = 128 << 10;
const size_t PAGE = 4 << 10;
// The number of bytes behind each shared array that must keep their pattern.
const size_t MARGIN = 64;
// Memory that nothing has written yet: as a float, a NaN.
const unsigned char POISON = 0xff;

struct Kernel {
  size_t bytes;
  unsigned threads;
  Body body;
};
std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

// A copy to shared memory that its thread has not waited for.
struct Copy {
  void* to;
  const void* from;
  unsigned live, bytes, group;
};

enum State { READY, AT_BARRIER, IN_WARP, DONE };

struct Block;
struct Fibre {
  Thread thread;  // the first member: `current` is a pointer to it
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = READY;
  Block* block = nullptr;
  struct Meeting* meeting = nullptr;
  const char* file = nullptr;  // of the barrier in which the fibre waits
  int line = 0;
  std::vector<Copy> copies;
  unsigned group = 0;  // of the next copies
};

// A place at which the lanes of one mask meet. The values stay until every lane has left.
struct Meeting {
  unsigned mask = 0, arrived = 0, left = 0;
  Function function = SYNC;
  int line = 0;
  uint64_t values[32];
  bool open() const { return mask && arrived != mask; }
};

struct SharedArray {
  const void* site;
  size_t bytes;
  const char* name;
  std::unique_ptr<unsigned char[]> memory;
  unsigned char* begin;
};

struct Block {
  Index3 index;
  std::vector<Fibre> fibres;
  std::vector<unsigned> ready;
  std::vector<std::vector<std::unique_ptr<Meeting>>> warps;
  std::vector<SharedArray> shared;
  unsigned at_barrier = 0, done = 0;
};

// The stacks of finished fibres, kept by each thread of the operating system for its next launch.
struct Stacks {
  std::vector<char*> free;
  char* take() {
    if (free.empty()) {
      void* memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
      // A fibre that overflows its stack faults instead of writing into another's.
      mprotect(memory, PAGE, PROT_NONE);
      return (char*)memory;
    }
    char* stack = free.back();
    free.pop_back();
    return stack;
  }
  ~Stacks() {
    for (char* stack : free) munmap(stack, STACK);
  }
};
thread_local Stacks stacks;

struct Launch {
  const char* name;
  Kernel kernel;
  const void* parameters;
  Index3 grid, threads;
  unsigned dynamic_bytes;
  uint64_t random;
  bool in_order;
  void* scheduler = nullptr;
  std::vector<std::unique_ptr<Block>> live;
  std::string error;

  uint64_t next() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
};
thread_local Launch* launch = nullptr;

// Saves the registers that a call must keep, and goes on with another stack.
extern "C" void zn_emulated_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl zn_emulated_switch
.hidden zn_emulated_switch
.type zn_emulated_switch, @function
zn_emulated_switch:
  endbr64
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size zn_emulated_switch, . - zn_emulated_switch
)");
const int SAVED = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl zn_emulated_switch
.hidden zn_emulated_switch
.type zn_emulated_switch, %function
zn_emulated_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size zn_emulated_switch, . - zn_emulated_switch
)");
#else
#error "the emulator has no switch of stacks for this processor"
#endif

Fibre* running() { return (Fibre*)current; }

void to_scheduler() {
  Fibre* me = running();
  zn_emulated_switch(&me->stack_pointer, launch->scheduler);
}

void enter() {
  launch->kernel.body(launch->parameters);
  Fibre* me = running();
  me->state = DONE;
  me->block->done++;
  to_scheduler();
  __builtin_trap();
}

// Prepares a stack on which the first switch enters the kernel.
void prepare(Fibre& fibre) {
  void** top = (void**)(fibre.stack + STACK - 64);
#if defined(__x86_64__)
  *--top = nullptr;
  *--top = (void*)enter;
  for (int i = 0; i < SAVED; i++) *--top = nullptr;
#else
  top -= 20;
  memset(top, 0, 160);
  top[11] = (void*)enter;
#endif
  fibre.stack_pointer = top;
}

void make_ready(Fibre& fibre) {
  fibre.state = READY;
  fibre.block->ready.push_back(fibre.thread.number);
}

std::string place(const Fibre& fibre) {
  const Index3 block = fibre.thread.block;
  char text[96];
  snprintf(text, sizeof text, "block (%u, %u, %u), thread %u", block.x, block.y, block.z, fibre.thread.number);
  return text;
}

void report(const Fibre& fibre, const std::string& text) {
  if (launch->error.empty()) launch->error = std::string(launch->name) + ": " + text + " (" + place(fibre) + ")";
}

bool start_block(unsigned number) {
  Launch& l = *launch;
  const unsigned n = l.threads.x * l.threads.y * l.threads.z;
  std::unique_ptr<Block> block(new Block);
  block->index = {number % l.grid.x, number / l.grid.x % l.grid.y, number / l.grid.x / l.grid.y};
  block->fibres.resize(n);
  block->warps.resize((n + 31) / 32);
  for (unsigned i = 0; i < n; i++) {
    Fibre& fibre = block->fibres[i];
    const Index3 at = {i % l.threads.x, i / l.threads.x % l.threads.y, i / l.threads.x / l.threads.y};
    fibre.thread = {at, block->index, l.threads, l.grid, i};
    fibre.block = block.get();
    fibre.meeting = nullptr;
    fibre.stack = stacks.take();
    if (!fibre.stack) {
      for (unsigned j = 0; j < i; j++) stacks.free.push_back(block->fibres[j].stack);
      l.error = "the emulator has no memory for the stack of a fibre; raise vm.max_map_count or use smaller blocks";
      return false;
    }
    prepare(fibre);
  }
  // The last one is taken first where threads run in order.
  for (unsigned i = n; i-- > 0;) make_ready(block->fibres[i]);
  l.live.push_back(std::move(block));
  return true;
}

void end_block(size_t at) {
  Block& block = *launch->live[at];
  for (SharedArray& array : block.shared)
    for (size_t i = 0; i < MARGIN; i++)
      if (array.begin[array.bytes + i] != POISON) {
        report(block.fibres[0], std::string("a write behind the end of the shared array ") + array.name);
        break;
      }
  for (Fibre& fibre : block.fibres) stacks.free.push_back(fibre.stack);
  launch->live.erase(launch->live.begin() + at);
}

// Explains why no thread of a block can run.
void explain(Block& block) {
  for (Fibre& fibre : block.fibres)
    if (fibre.state == IN_WARP) {
      char text[160];
      const Meeting& meeting = *fibre.meeting;
      snprintf(text, sizeof text, "lanes of a warp wait in line %d for the lanes %#x of the mask %#x, which never come",
               meeting.line, meeting.mask & ~meeting.arrived, meeting.mask);
      return report(fibre, text);
    }
  for (Fibre& fibre : block.fibres)
    if (fibre.state == AT_BARRIER)
      return report(fibre, "a barrier (line " + std::to_string(fibre.line) + ") that some threads of the block never reach");
}

// Lets all threads of a block go on from the barrier in which all of them wait.
void open_barrier(Block& block) {
  const Fibre& first = block.fibres[0];
  for (Fibre& fibre : block.fibres)
    if (fibre.line != first.line || fibre.file != first.file)
      return report(fibre, "threads of a block meet in different barriers (lines " + std::to_string(first.line) + " and " +
                               std::to_string(fibre.line) + ")");
  block.at_barrier = 0;
  for (size_t i = block.fibres.size(); i-- > 0;) make_ready(block.fibres[i]);
}

void run_all() {
  Launch& l = *launch;
  const u_int64_t total = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
  const size_t resident = l.in_order ? 1 : 1 + l.next() % 4;
  uint64_t started = 0;
  while (started < total && l.live.size() < resident)
    if (!start_block((unsigned)started++)) return;
  while (!l.live.empty() && l.error.empty()) {
    const size_t at = l.live.size() == 1 ? 0 : l.next() % l.live.size();
    Block& block = *l.live[at];
    if (block.ready.empty()) {
      const size_t n = block.fibres.size();
      if (block.done == n) {
        end_block(at);
        if (started < total && !start_block((unsigned)started++)) return;
      } else if (block.at_barrier == n) {
        open_barrier(block);
      } else {
        explain(block);
      }
      continue;
    }
    const size_t pick = l.in_order ? block.ready.size() - 1 : l.next() % block.ready.size();
    Fibre& fibre = block.fibres[block.ready[pick]];
    block.ready[pick] = block.ready.back();
    block.ready.pop_back();
    current = &fibre.thread;
    zn_emulated_switch(&l.scheduler, fibre.stack_pointer);
  }
}

}  // namespace

Register::Register(const char* name, size_t bytes, unsigned threads, Body body) {
  kernels()[name] = {bytes, threads, body};
}

void fail(const char* text) {
  report(*running(), text);
  to_scheduler();
  __builtin_trap();
}

void give_way() {
  if (launch->in_order || launch->next() % 4) return;
  make_ready(*running());
  to_scheduler();
}

void meet_block(const char* file, int line) {
  Fibre* me = running();
  me->file = file;
  me->line = line;
  me->state = AT_BARRIER;
  me->block->at_barrier++;
  to_scheduler();
}

const uint64_t* meet_warp(unsigned mask, Function function, int line, uint64_t value) {
  Fibre* me = running();
  const unsigned bit = 1u << lane();
  if (!(mask & bit)) fail("a lane calls a warp function whose mask leaves it out");
  auto& meetings = me->block->warps[me->thread.number / 32];
  Meeting* found = nullptr;
  Meeting* unused = nullptr;
  for (auto& one : meetings) {
    Meeting& meeting = *one;
    if (!meeting.mask) {
      unused = &meeting;
    } else if (meeting.open()) {
      if (meeting.mask == mask) {
        if (meeting.function != function || meeting.line != line) fail("lanes of a warp meet in different functions");
        found = &meeting;
      } else if (meeting.arrived & mask) {
        fail("lanes of a warp meet under different masks");
      }
    }
  }
  if (!found) {
    if (!unused) {
      meetings.emplace_back(new Meeting);
      unused = meetings.back().get();
    }
    found = unused;
    found->mask = mask;
    found->arrived = found->left = 0;
    found->function = function;
    found->line = line;
  }
  found->arrived |= bit;
  found->values[lane()] = value;
  me->meeting = found;
  if (found->open()) {
    me->state = IN_WARP;
    to_scheduler();
  } else {
    // The lane that comes last goes on, and the others follow in any order.
    const unsigned first = me->thread.number & ~31u;
    for (unsigned i = 32; i-- > 0;)
      if ((mask & ~bit) >> i & 1) make_ready(me->block->fibres[first + i]);
  }
  return found->values;
}

void leave_warp() {
  Fibre* me = running();
  Meeting* meeting = me->meeting;
  meeting->left |= 1u << lane();
  if (meeting->left == meeting->mask) meeting->mask = 0;
}

void* shared_memory(const void* site, size_t bytes, const char* name) {
  Block& block = *running()->block;
  for (SharedArray& array : block.shared)
    if (array.site == site) return array.begin;
  SharedArray array;
  array.site = site;
  array.bytes = bytes;
  array.name = name;
  array.memory.reset(new unsigned char[bytes + MARGIN + 128]);
  memset(array.memory.get(), POISON, bytes + MARGIN + 128);
  array.begin = (unsigned char*)(((uintptr_t)array.memory.get() + 127) & ~(uintptr_t)127);
  block.shared.push_back(std::move(array));
  return block.shared.back().begin;
}

void* dynamic_memory() {
  static const char site = 0;
  return shared_memory(&site, launch->dynamic_bytes, "of the launch");
}

void copy_later(void* to, const void* from, unsigned live, unsigned bytes) {
  Fibre* me = running();
  me->copies.push_back({to, from, live, bytes, me->group});
}

void commit_copies() { running()->group++; }

void wait_copies(unsigned pending) {
  Fibre* me = running();
  size_t done = 0;
  for (; done < me->copies.size() && me->copies[done].group + pending < me->group; done++) {
    const Copy& copy = me->copies[done];
    memcpy(copy.to, copy.from, copy.live);
    memset((char*)copy.to + copy.live, 0, copy.bytes - copy.live);
  }
  me->copies.erase(me->copies.begin(), me->copies.begin() + done);
}

}  // namespace zn

// Runs a kernel. `params[0]` points to its structure of parameters. With the seed 0, threads run in
// order, which is fast; any other seed makes a random schedule of its own. Returns 0 if the kernel
// ended without an error, and otherwise writes a text to `error`.
extern "C" int zn_emulated_launch(const char* kernel, const unsigned grid[3], const unsigned block[3],
                                  unsigned shared_bytes, void** params, unsigned long long seed, char* error,
                                  unsigned long error_len) {
  using namespace zn;
  Launch here;
  here.name = kernel;
  const auto found = kernels().find(kernel);
  const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  if (found == kernels().end()) {
    here.error = std::string(kernel) + ": there is no such kernel; call one of kernels.rs";
  } else if (!threads || threads > found->second.threads) {
    here.error = std::string(kernel) + ": blocks of " + std::to_string(threads) + " threads, but the kernel is compiled for 1 to " +
                 std::to_string(found->second.threads);
  } else if (!blocks || blocks > 0x7fffffff) {
    here.error = std::string(kernel) + ": a grid of " + std::to_string(blocks) + " blocks cannot be launched";
  } else if (shared_bytes > 227 << 10) {
    here.error = std::string(kernel) + ": " + std::to_string(shared_bytes) + " bytes of shared memory are more than a block can have";
  } else {
    here.kernel = found->second;
    here.parameters = params[0];
    here.grid = {grid[0], grid[1], grid[2]};
    here.threads = {block[0], block[1], block[2]};
    here.dynamic_bytes = shared_bytes;
    here.random = seed * 0x9e3779b97f4a7c15ull | 1;
    here.in_order = seed == 0;
    Launch* const outer = launch;
    launch = &here;
    run_all();
    for (auto& left : here.live)
      for (Fibre& fibre : left->fibres) stacks.free.push_back(fibre.stack);
    launch = outer;
    current = nullptr;
  }
  if (here.error.empty()) return 0;
  if (error && error_len) snprintf(error, error_len, "%s", here.error.c_str());
  return 1;
}

// Returns the bytes of a kernel's parameters, or 0 if there is no such kernel.
extern "C" unsigned long zn_emulated_parameter_bytes(const char* kernel) {
  const auto found = zn::kernels().find(kernel);
  return found == zn::kernels().end() ? 0 : found->second.bytes;
}

// A test of the emulator compiles one unit alone.
#ifdef ZN_UNIT
#include ZN_UNIT
#else
#include "../chain.cu"
#include "../clip.cu"
#include "../conformance.cu"
#include "../gather.cu"
#include "../in_batch.cu"
#include "../index.cu"
#include "../interaction.cu"
#include "../loss.cu"
#include "../math.cu"
#include "../norm.cu"
#include "../optimizer.cu"
#include "../product.cu"
#include "../reduce.cu"
#include "../rows.cu"
#include "../segment.cu"
#include "../table.cu"
#endif
