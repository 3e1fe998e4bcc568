// Tensors of Python's libraries as levada::Tensor, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "levada/tensor/dlpack.h"
#include "levada/tensor/tensor.h"
#include "python/src/batch/numpy_arrays.h"

namespace levada::python {

/// What a tensor was, and is to come back as.
enum class TensorKind : char {
  array = 'n',   ///< numpy.ndarray; also any other DLPack producer
  scalar = 's',  ///< numpy.generic, such as numpy.float32(1)
  torch = '@',   ///< torch.Tensor; any of the bits below may be added
};

/// Which kind "numpy" and "torch" name. Throws InvalidArgument for another name.
TensorKind kind_of_tensors(const std::string& name);

/// What a torch tensor has besides its elements.
struct TorchTraits {
  static constexpr int requires_grad = 1;
  static constexpr int parameter = 2;
  static constexpr int channels_last = 4;  ///< the memory format of that name for its rank, 4 or 5
  static constexpr int all = 7;
};

constexpr bool is_torch(TensorKind kind) {
  return (static_cast<int>(kind) & ~TorchTraits::all) == static_cast<int>(TensorKind::torch);
}

/// The classes of the libraries that are imported at the moment; imports none. With the GIL, as everything here.
class TensorLibraries {
 public:
  TensorLibraries() { look_again(); }
  /// Finds those that have been imported since.
  void look_again();

  /// Whether `value` is a tensor of a library or a DLPack producer, and of which kind.
  bool is_tensor(nanobind::handle value, TensorKind& kind) const;
  /// Whether it is an array or a scalar of numpy's whose elements are strings, bytes, dates or durations.
  bool is_text_or_time(nanobind::handle value) const;
  /// Whether it is of torch's own classes, which are no more than elements and TorchTraits.
  bool is_plain_torch(nanobind::handle value) const;
  /// The kind of a tensor of such a class, whose elements `view` shows.
  TensorKind torch_kind(nanobind::handle value, const TensorView& view) const;
  /// The elements of a tensor of torch's own class as they lie in this machine's memory, good as long as somebody holds
  /// `value`; empty for any other, which from_python() takes or refuses.
  std::optional<TensorView> plain_view(nanobind::handle value) const;
  /// The same, keeping `value` alive; its owner may go on any thread.
  std::optional<Tensor> plain_tensor(nanobind::handle value) const;
  /// The same of an array of numpy's own class, if its elements are integers, reals or booleans of this machine's.
  std::optional<Tensor> plain_array(nanobind::handle value) const;
  /// The tensor, viewing the memory of `value` and keeping it alive; its owner may go on any thread. Throws
  /// Python's TypeError, naming `path`, for what cannot cross.
  Tensor from_python(nanobind::handle value, TensorKind kind, const std::string& path) const;
  /// The tensor as `kind`; it keeps the memory alive. Writable if `tensor` is, unless said otherwise; torch, which has
  /// no other tensors, must be. Throws Unsupported where a library that it takes is not imported.
  nanobind::object to_python(const Tensor& tensor, TensorKind kind) const {
    return to_python(tensor, kind, tensor.is_writable());
  }
  nanobind::object to_python(const Tensor& tensor, TensorKind kind, bool writable) const;

 private:
  nanobind::object array_ = nanobind::none(), generic_ = nanobind::none(), torch_ = nanobind::none();
  nanobind::object parameter_ = nanobind::none();                            ///< torch.nn.Parameter
  nanobind::object is_neg_ = nanobind::none(), is_conj_ = nanobind::none();  ///< methods of torch's tensors
  NumpyArrays arrays_;
  const dlpack::ExchangeApi* torch_exchange_ = nullptr;  ///< null where torch is not imported, or too old
};

}  // namespace levada::python
