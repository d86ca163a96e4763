// The parts of the simulated card, as the other files see them.
//
// Everything is registered under torch's own CUDA keys of a torch that was built without CUDA. The
// card's memory is the host's, and its kernels are the host's; but a tensor says `cuda:0`, so that
// every rule of torch about devices applies.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace simulated {

constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
inline c10::Device card() { return {kDevice, 0}; }

// ---- memory.cpp
struct MemoryStatistics {
  int64_t bytes = 0, peak_bytes = 0, allocated_bytes = 0, freed_bytes = 0;
  int64_t blocks = 0, peak_blocks = 0, allocated_blocks = 0, freed_blocks = 0;
  int64_t out_of_memory = 0, limit = 0;
};
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
MemoryStatistics memory_statistics();
void reset_peak_memory();
void limit_memory(int64_t bytes);  // what does not fit raises torch.OutOfMemoryError

// ---- generator.cpp
const at::Generator& default_generator();
at::Generator new_generator();
// A host generator for the next random operation of a card's generator (None: the default one).
at::Generator generator_for_next_operation(const at::Generator& generator);

// ---- guard.cpp
void install_guard();  // and how streams and events behave
std::array<int64_t, 3> current_stream();
void set_current_stream(int64_t id);

// ---- operations.cpp
struct Refusal {
  std::string operation;
  std::vector<std::pair<std::string, std::string>>
      arguments;  // argument and dtype ("Half"): all must hold
  std::string words;
};
void add_refusal(const Refusal& refusal);

}  // namespace simulated
