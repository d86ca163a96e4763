// Memory of the simulated card: the host's, counted, limited, and never zero before somebody writes
// to it.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "device.h"

namespace simulated {
namespace {

constexpr size_t kGranularity =
    512;  // bytes: CUDA's caching allocator rounds each request up to a multiple of it

std::mutex mutex;
MemoryStatistics statistics;
std::unordered_map<void*, size_t> blocks;
std::unordered_set<const void*> pinned;

std::string mebibytes(int64_t bytes) {
  char text[32];
  const bool large = bytes >= (int64_t(1) << 30);
  snprintf(text, sizeof text, "%.2f %s", double(bytes) / (large ? 1 << 30 : 1 << 20),
           large ? "GiB" : "MiB");
  return text;
}

void release(void* pointer) {
  if (pointer == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto block = blocks.find(pointer);
  const auto size = int64_t(block->second);
  blocks.erase(block);
  statistics.bytes -= size, statistics.freed_bytes += size;
  statistics.blocks -= 1, statistics.freed_blocks += 1;
  std::free(pointer);
}

// Torch's words (c10/cuda/CUDACachingAllocator.cpp); C++ throws, and torch's bindings make
// torch.OutOfMemoryError of it. No Python is called here: torch allocates without the interpreter's
// lock.
[[noreturn]] void out_of_memory(int64_t size) {
  statistics.out_of_memory += 1;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   mebibytes(size), ". GPU 0 has a total capacity of ", mebibytes(statistics.limit),
                   " of which ",
                   mebibytes(std::max<int64_t>(0, statistics.limit - statistics.bytes)),
                   " is free. Of the allocated memory ", mebibytes(statistics.bytes),
                   " is allocated by PyTorch (a simulated card).");
  __builtin_unreachable();
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t requested) override {
    if (requested == 0) return {nullptr, nullptr, &release, card()};
    const size_t size = (requested + kGranularity - 1) / kGranularity * kGranularity;
    const std::lock_guard<std::mutex> lock(mutex);
    void* pointer = nullptr;
    if (statistics.bytes + int64_t(size) > statistics.limit ||
        posix_memalign(&pointer, kGranularity, size) != 0)
      out_of_memory(int64_t(size));
    std::memset(pointer, 0x7f,
                size);  // 3.4e38 in FP32, NaN in FP16: reading what nobody wrote shows
    blocks[pointer] = size;
    statistics.bytes += int64_t(size), statistics.allocated_bytes += int64_t(size);
    statistics.blocks += 1, statistics.allocated_blocks += 1;
    statistics.peak_bytes = std::max(statistics.peak_bytes, statistics.bytes);
    statistics.peak_blocks = std::max(statistics.peak_blocks, statistics.blocks);
    return {pointer, pointer, &release, card()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

void unpin(void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex);
  pinned.erase(pointer);
  std::free(pointer);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* pointer = nullptr;
    if (size != 0) {
      TORCH_CHECK(posix_memalign(&pointer, 64, size) == 0,
                  "CUDA error: out of memory (pinned host memory)");
      const std::lock_guard<std::mutex> lock(mutex);
      pinned.insert(pointer);
    }
    return {pointer, pointer, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

DeviceAllocator the_device_allocator;
PinnedAllocator the_pinned_allocator;

}  // namespace

c10::Allocator* device_allocator() { return &the_device_allocator; }
c10::Allocator* pinned_allocator() { return &the_pinned_allocator; }

bool is_pinned(const void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex);
  return pinned.count(pointer) != 0;
}

MemoryStatistics memory_statistics() {
  const std::lock_guard<std::mutex> lock(mutex);
  return statistics;
}

void reset_peak_memory() {
  const std::lock_guard<std::mutex> lock(mutex);
  statistics.peak_bytes = statistics.bytes, statistics.peak_blocks = statistics.blocks;
}

void limit_memory(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  statistics.limit = bytes;
}

}  // namespace simulated
