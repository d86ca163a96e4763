// Random numbers of the simulated card: a state of 16 bytes, seed and offset, as a CUDA generator
// has.
//
// A CUDA generator is a counter (Philox): what an operation draws follows from the seed and the
// offset, and the offset moves on. So here, each random operation gets a host generator seeded with
// both. The numbers are not those of a real card, and not those that the CPU draws from the same
// seed, which is as on a real card.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

#include "device.h"

namespace simulated {
namespace {

constexpr int64_t kStateBytes = 16;
constexpr uint64_t kOffsetStep =
    4;  // an offset is a multiple of 4, the numbers of one Philox block

constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ULL;

uint64_t mixed(uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct CardGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;

  CardGenerator() : c10::GeneratorImpl(card(), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  at::Generator next() {
    auto host = at::detail::createCPUGenerator(mixed(mixed(seed_ + kGoldenRatio) + offset_));
    offset_ += kOffsetStep;
    return host;
  }
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % kOffsetStep == 0, "offset must be a multiple of 4");
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({kStateBytes}, at::kByte, {}, {}, {}, {});
    std::memcpy(state.mutable_data_ptr(), &seed_, 8);
    std::memcpy(static_cast<char*>(state.mutable_data_ptr()) + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size");
    std::memcpy(&seed_, state.data(), 8);
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + 8, 8);
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    seed_ = other->current_seed(), offset_ = other->get_offset();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  static c10::DeviceType device_type() { return kDevice; }
  CardGenerator* clone_impl() const override {
    auto* copy = new CardGenerator();
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }
};

}  // namespace

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<CardGenerator>();
  return generator;
}

at::Generator new_generator() { return at::make_generator<CardGenerator>(); }

at::Generator generator_for_next_operation(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kDevice,
              "Expected a 'cuda' device type for generator but found '", generator.device().type(),
              "'");
  auto* implementation = static_cast<CardGenerator*>(generator.unsafeGetGeneratorImpl());
  const std::lock_guard<std::mutex> lock(implementation->mutex_);
  return implementation->next();
}

}  // namespace simulated
