// Operations of the simulated card: torch's CPU kernels, run on the card's memory.
//
// An operation that arrives here has a tensor on the card, or makes one. Its arguments are checked
// (devices, dtypes); each tensor of the card is replaced by a host tensor over the same memory, a
// random generator by a host one; the CPU's kernel runs; and what it returns becomes the card's.
// Half numerics are a GPU's: products, convolutions and norms compute in FP32 and round once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <map>
#include <unordered_map>
#include <unordered_set>

#include "device.h"

namespace simulated {
namespace {

using at::Tensor;
using c10::IValue;
using c10::ScalarType;

// -------------------------------------------------------------------------------------------------
// tables of operations

// Operations that a GPU computes in FP32 for 16-bit inputs and rounds once, and for each output the
// argument whose dtype it has ("" where the FP32 result stays FP32).
const std::unordered_map<std::string, std::vector<std::string>> kComputedInFp32 = {
    {"aten::mm", {"self"}},
    {"aten::bmm", {"self"}},
    {"aten::mv", {"self"}},
    {"aten::dot", {"self"}},
    {"aten::vdot", {"self"}},
    {"aten::addmm", {"self"}},
    {"aten::baddbmm", {"self"}},
    {"aten::addmv", {"self"}},
    {"aten::addbmm", {"self"}},
    {"aten::addr", {"self"}},
    {"aten::_addmm_activation", {"self"}},
    {"aten::convolution", {"input"}},
    {"aten::convolution_backward", {"input", "input", "input"}},
    {"aten::native_layer_norm", {"input", "", ""}},
    {"aten::native_layer_norm_backward", {"input", "weight", "weight"}},
    {"aten::native_group_norm", {"input", "input", "input"}},
    {"aten::native_group_norm_backward", {"input", "input", "input"}},
    {"aten::native_batch_norm", {"input", "", ""}},
    {"aten::native_batch_norm_backward", {"input", "weight", "weight"}},
};

bool takes_mixed_dtypes(const std::string& name) { return name.find("_norm") != std::string::npos; }

bool is_16_bit(ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

std::unordered_map<std::string, std::vector<Refusal>>& refusals() {
  static std::unordered_map<std::string, std::vector<Refusal>> table;
  return table;
}

// -------------------------------------------------------------------------------------------------
// views of memory

using Storages = std::unordered_map<c10::StorageImpl*, c10::Storage>;

bool on_card(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice; }

// What is true of a tensor beyond its memory and its strides.
void copy_bits(const Tensor& from, const Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  to._set_conj(from.is_conj());
  to._set_neg(from.is_neg());
}

Tensor over(const c10::Storage& storage, const Tensor& like, c10::DispatchKey key) {
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                           c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  copy_bits(like, tensor);
  return tensor;
}

// The tensors of one operation in both places. Tensors that share memory on the card share it on
// the host.
class Views {
 public:
  Tensor on_host(const Tensor& tensor) {
    if (!on_card(tensor)) return tensor;
    if (tensor.is_sparse())
      return sparse(tensor, at::kCPU, [this](const Tensor& part) { return on_host(part); });
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && tensor.has_storage(),
                                "the simulated card has no tensors of layout ", tensor.layout());
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = host_.find(storage);
    if (found == host_.end()) {
      // resizable, so that a kernel may grow an output; write_back sees it
      c10::Storage host(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                        c10::DataPtr(tensor.storage().mutable_data(), c10::Device(at::kCPU)),
                        c10::GetCPUAllocator(), true);
      found = host_.emplace(storage, host).first;
      card_.emplace(host.unsafeGetStorageImpl(), tensor.storage());
    }
    return over(found->second, tensor, c10::DispatchKey::CPU);
  }

  Tensor to_card(const Tensor& tensor) {
    if (!tensor.defined() || on_card(tensor)) return tensor;
    if (tensor.is_sparse())
      return sparse(tensor, card(), [this](const Tensor& part) { return to_card(part); });
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && tensor.has_storage(),
                                "the simulated card has no tensors of layout ", tensor.layout());
    if (const auto shared = card_.find(tensor.storage().unsafeGetStorageImpl());
        shared != card_.end() && shared->second.nbytes() >= tensor.storage().nbytes())
      return over(shared->second, tensor, c10::DispatchKey::CUDA);
    const auto resolved = tensor.resolve_conj().resolve_neg();
    Tensor result = at::detail::empty_strided_generic(
        resolved.sizes(), resolved.strides(), device_allocator(),
        c10::DispatchKeySet(c10::DispatchKey::CUDA), resolved.scalar_type());
    on_host(result).copy_(resolved);
    return result;
  }

 private:
  template <typename Part>
  static Tensor sparse(const Tensor& tensor, c10::Device device, Part part) {
    const auto key = device.is_cpu() ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparseCUDA;
    auto* from = at::sparse::get_sparse_impl(tensor);
    Tensor result =
        at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), tensor.dtype());
    auto* to = at::sparse::get_sparse_impl(result);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(part(from->indices()), part(from->values()));
    to->set_coalesced(from->coalesced());
    return result;
  }

  Storages host_, card_;
};

// What a kernel did to an argument's shape, or to an FP32 copy of it, done to the argument.
void write_back(const Tensor& host, const Tensor& tensor, Views& views) {
  if (tensor.is_sparse()) {
    auto *from = at::sparse::get_sparse_impl(host), *to = at::sparse::get_sparse_impl(tensor);
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(views.to_card(from->indices()),
                                      views.to_card(from->values()));
    to->set_coalesced(from->coalesced());
    return;
  }
  const bool same_memory = host.storage().data() == tensor.storage().data();
  if (same_memory && host.nbytes() <= tensor.storage().nbytes()) {
    tensor.unsafeGetTensorImpl()->set_storage_offset(host.storage_offset());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    return;
  }
  if (!tensor.sizes().equals(host.sizes())) {
    tensor.resize_(host.sizes());
    if (tensor.is_contiguous() && !host.is_contiguous() && host.is_non_overlapping_and_dense())
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
  }
  Views().on_host(tensor).copy_(host);
}

// -------------------------------------------------------------------------------------------------
// checks

struct Argument {
  const c10::Argument& schema;
  const IValue& value;
};

template <typename Visit>
void for_each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor.has_value() && tensor->defined()) visit(*tensor);
  }
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Torch's rule: a host tensor of no dimension is a number to most operations, indices may come from
// the host; nothing else. Element-wise kernels and the others say so in words of their own
// (TensorIterator.cpp, c10/core/impl/...device_check).
void check_devices(const c10::OperatorHandle& handle, const std::vector<Argument>& arguments) {
  const auto& name = handle.schema().name();
  bool card_used = false, host_used = false, card_draws = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument.value, [&](const Tensor& tensor) {
      (on_card(tensor) ? card_used : host_used) = true;
    });
    card_draws |= argument.value.isGenerator();
  }
  TORCH_CHECK(card_used || !host_used || !card_draws,
              "Expected a 'cpu' device type for generator but found 'cuda'");
  if (!card_used) return;
  const bool indexing = name == "aten::index" || name.rfind("aten::index_put", 0) == 0 ||
                        name.rfind("aten::_index_put", 0) == 0 || name == "aten::_unsafe_index" ||
                        name == "aten::_unsafe_index_put";
  const bool takes_numbers = name != "aten::cat" && name.find("_amp_") == std::string::npos;
  const bool copies = name.rfind("aten::copy", 0) == 0;
  for (const auto& argument : arguments) {
    for_each_tensor(argument.value, [&](const Tensor& tensor) {
      if (!tensor.device().is_cpu() || copies) return;
      if (indexing && argument.schema.name() == "indices") return;
      TORCH_CHECK(
          !indexing || argument.schema.name() != "self",
          "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
      if (tensor.dim() == 0 && takes_numbers && !writes(argument.schema)) return;
      TORCH_CHECK(!handle.hasTag(at::Tag::pointwise),
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "cuda:0 and cpu!");
      const auto method = "wrapper_CUDA_" + name.substr(name.find("::") + 2);
      c10::impl::common_device_check_failure(card(), tensor, method.c_str(),
                                             argument.schema.name().c_str());
    });
  }
}

bool matches(const Refusal& refusal, const std::vector<Argument>& arguments) {
  for (const auto& [wanted, dtype] : refusal.arguments) {
    bool found = false;
    for (const auto& argument : arguments)
      if (argument.schema.name() == wanted)
        for_each_tensor(argument.value, [&](const Tensor& tensor) {
          found |= dtype == c10::toString(tensor.scalar_type());
        });
    if (!found) return false;
  }
  return true;
}

void check_refusals(const std::string& name, const std::vector<Argument>& arguments) {
  const auto rows = refusals().find(name);
  if (rows == refusals().end()) return;
  for (const auto& refusal : rows->second) {
    if (!matches(refusal, arguments)) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(refusal.words.find("not implemented") == std::string::npos,
                                refusal.words);
    TORCH_CHECK(false, refusal.words);
  }
}

// -------------------------------------------------------------------------------------------------
// one operation

// Random kernels without a generator's argument draw from the host's default one: for one call, it
// stands where the card's does, and afterwards where it stood.
class BorrowedHostGenerator {
 public:
  explicit BorrowedHostGenerator(bool needed) {
    if (!needed) return;
    saved_ = host().get_state();
    host().set_state(generator_for_next_operation(default_generator()).get_state());
  }
  ~BorrowedHostGenerator() {
    if (saved_.defined()) host().set_state(saved_);
  }

 private:
  static at::Generator host() { return at::detail::getDefaultCPUGenerator(); }
  Tensor saved_;
};

class Operation {
 public:
  Operation(const c10::OperatorHandle& handle, torch::jit::Stack* stack)
      : handle_(handle),
        schema_(handle.schema()),
        stack_(stack),
        first_(stack->size() - schema_.arguments().size()),
        given_(stack->begin() + int64_t(first_), stack->end()) {}

  void run() {
    std::vector<Argument> arguments;
    for (size_t i = 0; i < given_.size(); i++)
      arguments.push_back({schema_.arguments()[i], given_[i]});
    check_devices(handle_, arguments);
    check_refusals(schema_.name(), arguments);
    decide_precision(arguments);
    // Below autograd and autocast, and out of sight of Python's modes: one operation of the card is
    // one operation.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_the_rest(
        c10::autocast_dispatch_keyset |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    for (size_t i = 0; i < given_.size(); i++)
      (*stack_)[first_ + i] = to_host(given_[i], schema_.arguments()[i]);
    {
      const BorrowedHostGenerator borrowed(handle_.hasTag(at::Tag::nondeterministic_seeded) &&
                                           !has_generator());
      handle_.callBoxed(stack_);
    }
    for (const auto& [host, tensor] : written_) write_back(host, tensor, views_);
    const size_t results = stack_->size() - schema_.returns().size();
    for (size_t i = 0; i < schema_.returns().size(); i++)
      (*stack_)[results + i] = to_card((*stack_)[results + i], i);
  }

 private:
  bool has_generator() const {
    for (const auto& argument : schema_.arguments())
      if (argument.name() == "generator") return true;
    return false;
  }

  // On CUDA, F.softmax(x_half, dtype=torch.float32) is one kernel that reads half and writes FP32,
  // and its backward one that reads FP32 and writes half. The CPU has neither.
  bool is_softmax_of_two_dtypes() {
    const auto& name = schema_.name();
    if (name == "aten::_softmax" || name == "aten::_log_softmax") {
      TORCH_CHECK(!given_[2].toBool() || given_[0].toTensor().scalar_type() == at::kHalf,
                  "conversion is supported for Half type only");
      return given_[2].toBool();
    }
    if (name != "aten::_softmax_backward_data" && name != "aten::_log_softmax_backward_data")
      return false;
    const auto input_dtype = static_cast<ScalarType>(given_[3].toInt());
    if (input_dtype == given_[0].toTensor().scalar_type()) return false;
    result_dtypes_ = {input_dtype};
    return true;
  }

  void decide_precision(const std::vector<Argument>& arguments) {
    softmax_of_two_dtypes_ = is_softmax_of_two_dtypes();
    if (softmax_of_two_dtypes_) {
      in_fp32_ = true;
      return;
    }
    const auto row = kComputedInFp32.find(schema_.name());
    if (row == kComputedInFp32.end()) return;
    bool any_16_bit = false, any_fp32 = false;
    std::map<std::string, ScalarType> dtypes;
    for (const auto& argument : arguments)
      for_each_tensor(argument.value, [&](const Tensor& tensor) {
        any_16_bit |= is_16_bit(tensor.scalar_type());
        any_fp32 |= tensor.scalar_type() == at::kFloat;
        dtypes.emplace(argument.schema.name(), tensor.scalar_type());
      });
    in_fp32_ = any_16_bit && (!any_fp32 || takes_mixed_dtypes(schema_.name()));
    if (!in_fp32_) return;  // a product of two dtypes is refused by the kernel, in torch's words
    for (const auto& source : row->second) {
      const auto dtype = dtypes.find(source);
      result_dtypes_.push_back(dtype == dtypes.end() ? at::kFloat : dtype->second);
    }
  }

  Tensor to_host(const Tensor& tensor, bool written) {
    if (!on_card(tensor)) return tensor;
    auto host = views_.on_host(tensor);
    if (in_fp32_ && is_16_bit(tensor.scalar_type())) {
      host = host.to(at::kFloat);
      if (written) written_.emplace_back(host, tensor);
    } else if (written) {
      written_.emplace_back(host, tensor);
    }
    return host;
  }

  IValue to_host(const IValue& value, const c10::Argument& argument) {
    const bool written = writes(argument);
    if (value.isTensor()) return to_host(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(to_host(tensor, written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor.has_value() ? std::optional<Tensor>(to_host(*tensor, written))
                                          : std::nullopt);
      return list;
    }
    if (value.isDevice()) return c10::Device(at::kCPU);
    if (softmax_of_two_dtypes_ && argument.name() == "half_to_float") return false;
    if (softmax_of_two_dtypes_ && argument.name() == "input_dtype") return int64_t(at::kFloat);
    if (argument.name() == "generator" && (value.isNone() || value.isGenerator()))
      return generator_for_next_operation(value.isNone() ? default_generator()
                                                         : value.toGenerator());
    return value;
  }

  Tensor to_card(const Tensor& tensor, size_t index) {
    if (!tensor.defined()) return tensor;
    const bool rounds =
        in_fp32_ && tensor.scalar_type() == at::kFloat && index < result_dtypes_.size();
    return views_.to_card(rounds ? tensor.to(result_dtypes_[index]) : tensor);
  }

  IValue to_card(const IValue& value, size_t index) {
    const auto* alias = schema_.returns()[index].alias_info();
    if (alias != nullptr && alias->isWrite())
      for (size_t i = 0; i < given_.size(); i++)
        if (writes(schema_.arguments()[i]) && *schema_.arguments()[i].alias_info() == *alias)
          return given_[i];
    if (value.isTensor()) return to_card(value.toTensor(), index);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(to_card(tensor, index));
      return list;
    }
    return value;
  }

  const c10::OperatorHandle& handle_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack* stack_;
  size_t first_;
  std::vector<IValue> given_;
  Views views_;
  std::vector<std::pair<Tensor, Tensor>> written_;  // the host's, the card's
  bool in_fp32_ = false, softmax_of_two_dtypes_ = false;
  std::vector<ScalarType> result_dtypes_;
};

void run_on_host(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  Operation(handle, stack).run();
}

// -------------------------------------------------------------------------------------------------
// operations of its own

Tensor empty(at::IntArrayRef size, std::optional<ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool> pin_memory,
             std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(size, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>,
                     std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

}  // namespace

void add_refusal(const Refusal& refusal) { refusals()[refusal.operation].push_back(refusal); }

// A fallback gives way to kernels written for any device. Where the CPU has one of its own beside
// such a kernel, CUDA has one, too: the card takes the CPU's.
void take_kernels_of(c10::DispatchKey host, torch::Library& library,
                     const std::unordered_set<std::string>& but = {}) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || but.count(name.name) != 0) continue;
    const auto handle = dispatcher.findOp(name);
    if (!handle || !handle->hasKernelForDispatchKey(host)) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library.impl((name.name.substr(6) + overload).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(_, SparseCUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) {
  take_kernels_of(c10::DispatchKey::SparseCPU, library);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  take_kernels_of(c10::DispatchKey::CPU, library,
                  {"aten::empty", "aten::empty_strided", "aten::resize_", "aten::set_",
                   "aten::record_stream", "aten::_fused_sdp_choice"});
  for (const char* name : {"convolution", "convolution_backward",
                           "copy_"})  // written for any device, with what CUDA lacks here
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_", TORCH_FN(at::native::set_cpu_));
  library.impl("set_.source_Storage",
               static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("record_stream", [](Tensor&, c10::Stream) {});
  library.impl("_use_cudnn_ctc_loss", [](const Tensor&, const Tensor&, at::IntArrayRef,
                                         at::IntArrayRef, int64_t) { return false; });
  library.impl("_use_cudnn_ctc_loss.Tensor", [](const Tensor&, const Tensor&, const Tensor&,
                                                const Tensor&, int64_t) { return false; });
  library.impl("_fused_sdp_choice",
               [](const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double,
                  bool, std::optional<double>, bool) -> int64_t { return 0; });  // the math path
}

}  // namespace simulated
