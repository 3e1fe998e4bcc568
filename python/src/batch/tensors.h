// Conversion of tensors between Python's libraries and levada::Tensor.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "levada/tensor/dlpack.h"
#include "levada/tensor/tensor.h"
#include "python/src/batch/numpy_arrays.h"

namespace levada::python {

/// The Python type of a tensor, to which it is converted back.
enum class TensorKind : char {
  array = 'n',   ///< numpy.ndarray; also any other DLPack producer
  scalar = 's',  ///< numpy.generic, such as numpy.float32(1)
  torch = '@',   ///< torch.Tensor; any of the bits below may be added
};

/// Returns the kind for "numpy" or "torch". Throws InvalidArgument for another name.
TensorKind kind_of_tensors(const std::string& name);

/// Properties of a torch tensor in addition to its elements.
struct TorchTraits {
  static constexpr int requires_grad = 1;
  static constexpr int parameter = 2;
  static constexpr int channels_last = 4;  ///< memory format of that name for ranks 4 and 5
  static constexpr int all = 7;
};

constexpr bool is_torch(TensorKind kind) {
  return (static_cast<int>(kind) & ~TorchTraits::all) == static_cast<int>(TensorKind::torch);
}

/// The classes of the tensor libraries that are already imported; imports none. With the GIL, as all members.
class TensorLibraries {
 public:
  TensorLibraries() { refresh(); }
  /// Finds libraries that have been imported in the meantime.
  void refresh();

  /// Returns whether `value` is a tensor of a library or a DLPack producer, and sets `kind`.
  bool is_tensor(nanobind::handle value, TensorKind& kind) const;
  /// Returns whether it is a numpy array or scalar of strings, bytes, dates or durations.
  bool is_text_or_time(nanobind::handle value) const;
  /// Returns whether it is of torch's own classes, which have only elements and TorchTraits.
  bool is_plain_torch(nanobind::handle value) const;
  /// Returns the kind of such a tensor, whose elements are `view`.
  TensorKind torch_kind(nanobind::handle value, const TensorView& view) const;
  /// Returns the elements of a tensor of torch's own class, in this machine's memory, valid as long as `value` is held.
  /// Returns nothing for any other object, which from_python() accepts or rejects.
  std::optional<TensorView> plain_view(nanobind::handle value) const;
  /// Returns the same as a Tensor that keeps `value` alive; its owner may be destroyed on any thread.
  std::optional<Tensor> plain_tensor(nanobind::handle value) const;
  /// Returns the same for an array of numpy's own class if its elements are native integers, reals or booleans.
  std::optional<Tensor> plain_array(nanobind::handle value) const;
  /// Returns a copy of an array, tensor or number of the libraries' own classes, or `value` itself if it owns its
  /// memory and nothing else refers to it (`is_ours`). Returns an invalid object for any other object.
  nanobind::object detached(nanobind::handle value, bool is_ours) const;
  /// Returns a tensor that views the memory of `value` and keeps it alive; its owner may be destroyed on any thread.
  /// Throws Python's TypeError, naming `path`, if the value cannot be transferred.
  Tensor from_python(nanobind::handle value, TensorKind kind, const std::string& path) const;
  /// Returns the tensor as `kind`; it keeps the memory alive. It is writable if `tensor` is, unless `writable` says
  /// otherwise. A torch tensor must be writable. Throws Unsupported if a required library is not imported.
  nanobind::object to_python(const Tensor& tensor, TensorKind kind) const {
    return to_python(tensor, kind, tensor.is_writable());
  }
  nanobind::object to_python(const Tensor& tensor, TensorKind kind, bool writable) const;

 private:
  nanobind::object array_ = nanobind::none(), generic_ = nanobind::none(), torch_ = nanobind::none();
  nanobind::object parameter_ = nanobind::none();                            ///< torch.nn.Parameter
  nanobind::object is_neg_ = nanobind::none(), is_conj_ = nanobind::none();  ///< methods of torch's tensors
  nanobind::object int8_ = nanobind::none(), uint8_ = nanobind::none();      ///< dtypes of torch
  NumpyArrays arrays_;
  const dlpack::ExchangeApi* torch_exchange_ = nullptr;  ///< null if torch is not imported, or too old
};

}  // namespace levada::python
