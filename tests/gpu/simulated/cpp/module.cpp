// The simulated card as a Python module: what tests/gpu/simulated/runtime.py builds torch.cuda's
// foundations from.
#include <ATen/detail/CUDAHooksInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "device.h"

namespace py = pybind11;
using simulated::kDevice;

namespace {

py::dict memory() {
  const auto now = simulated::memory_statistics();
  py::dict statistics;
  statistics["bytes"] = now.bytes, statistics["peak_bytes"] = now.peak_bytes;
  statistics["allocated_bytes"] = now.allocated_bytes, statistics["freed_bytes"] = now.freed_bytes;
  statistics["blocks"] = now.blocks, statistics["peak_blocks"] = now.peak_blocks;
  statistics["allocated_blocks"] = now.allocated_blocks,
  statistics["freed_blocks"] = now.freed_blocks;
  statistics["out_of_memory"] = now.out_of_memory, statistics["limit"] = now.limit;
  return statistics;
}

// torch.cuda's lazy initialization: from here on a forked child may not touch the card.
void initialize() {
  torch::utils::register_fork_handler_for_device_init(kDevice);
  torch::utils::set_requires_device_init(kDevice, false);
}

}  // namespace

PYBIND11_MODULE(simulated_cuda, module) {
  c10::SetAllocator(kDevice, simulated::device_allocator(), /*priority=*/1);
  simulated::install_guard();
  module.def("hooks_are_ours",
             [] { return at::detail::getCUDAHooks().showConfig() == "CUDA: simulated\n"; });
  module.def("initialize", &initialize);
  module.def("in_bad_fork", [] { return torch::utils::is_device_in_bad_fork(kDevice); });
  module.def("memory", &memory);
  module.def("reset_peak_memory", &simulated::reset_peak_memory);
  module.def("limit_memory", &simulated::limit_memory);
  module.def("current_stream", [] { return simulated::current_stream(); });
  module.def("set_current_stream", &simulated::set_current_stream);
  module.def("refuse", [](const std::string& operation,
                          const std::vector<std::pair<std::string, std::string>>& arguments,
                          const std::string& words) {
    simulated::add_refusal({operation, arguments, words});
  });
  module.def("default_generator", [] {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(simulated::default_generator()));
  });
}
