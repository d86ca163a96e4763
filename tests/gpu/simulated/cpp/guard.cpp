// The simulated card as torch's core sees it: one device, streams and events in which all work is
// done at once.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "device.h"

namespace simulated {
namespace {

using Clock = std::chrono::steady_clock;

thread_local int64_t stream_id = 0;
std::atomic<int64_t> streams{0};

c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, card(), id); }

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index <= 0,
              "CUDA error: invalid device ordinal (this simulated machine has one card, cuda:0)");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return card(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    check_index(device.index());
    return card();
  }
  void setDevice(c10::Device device) const override { check_index(device.index()); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return stream(stream_id); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(++streams); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(++streams);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = stream(stream_id);
    stream_id = next.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  // An event is the time at which it was recorded.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    const auto passed =
        *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(begin);
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

}  // namespace

void install_guard() { c10::impl::registerDeviceGuard(kDevice, new Guard()); }

std::array<int64_t, 3> current_stream() { return {stream_id, 0, int64_t(kDevice)}; }

void set_current_stream(int64_t id) { stream_id = id; }

}  // namespace simulated

namespace at {

// What torch asks of CUDA through its hooks. Whoever asks first decides which hooks there are, so
// this library is loaded before torch is.
struct SimulatedHooks final : CUDAHooksInterface {
  explicit SimulatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  long versionCUDART() const override { return 12060; }
  std::string showConfig() const override { return "CUDA: simulated\n"; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return simulated::default_generator();
  }
  Generator getNewGenerator(DeviceIndex) const override { return simulated::new_generator(); }
  Allocator* getPinnedMemoryAllocator() const override { return simulated::pinned_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return simulated::device_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return simulated::is_pinned(pointer); }
  Device getDeviceFromPtr(void*) const override { return simulated::card(); }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, SimulatedHooks)

}  // namespace at
