#include "python/src/batch/tensors.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "python/src/base/callables.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using Incoming = nb::ndarray<nb::ro, nb::device::cpu>;

nb::object class_in(const char* module, const char* name) {
  const auto found = imported(module);
  return found.is_none() ? nb::object(nb::none()) : nb::object(nb::getattr(found, name, nb::none()));
}

bool is_instance(nb::handle value, const nb::object& type) {
  return !type.is_none() && PyObject_IsInstance(value.ptr(), type.ptr()) == 1;
}

std::string refusal(const std::string& path, std::string_view why) {
  return printable(fmt::format("{} cannot cross between ranks: {}", path, why));
}

[[noreturn]] void throw_type_error(const std::string& path, std::string_view why) {
  throw nb::type_error(refusal(path, why).c_str());
}

/// DLPack types that numpy supports only with ml_dtypes and that torch does not always export. They travel as integers.
bool is_disguised(DType dtype) {
  return dtype.code == dtypes::bfloat16.code || dtype.code >= dtypes::float8_e3m4.code;
}

std::string text_of(nb::handle value) {
  return nb::cast<std::string>(nb::str(value));
}

/// Returns the expression that a caller should pass in place of an array or tensor of a derived class.
std::string plain_form(nb::handle value) {
  return text_of(nb::module_::import_("levada.batch.memory").attr("plain_form")(value));
}

std::optional<DType> dtype_of(const std::string& name) {
  try {
    return DType::parse(name);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

/// Returns the DLPack type with this name if it must be disguised.
std::optional<DType> disguised(const std::string& name) {
  return name.starts_with("bfloat") || name.starts_with("float8") ? dtype_of(name) : std::nullopt;
}

/// Keeps a Python object alive for memory that any thread may release, even after the interpreter has ended.
template <typename Object>
std::shared_ptr<const void> owner_of(Object object) {
  return {new Object(std::move(object)), DeleteWithGil()};
}

Tensor view_of(nb::handle value, std::optional<DType> dtype, const std::string& path) {
  Incoming array;
  if (!nb::try_cast(nb::borrow(value), array)) {
    throw_type_error(path, fmt::format("{} provides no host memory through DLPack or the buffer protocol",
                                       text_of(nb::handle(Py_TYPE(value.ptr())))));
  }
  const auto given = array.dtype();
  const DType own = dtype.value_or(DType{given.code, given.bits, given.lanes});
  if (!own.is_known() || array.ndim() > Shape::max_rank)
    throw_type_error(path, "DLPack cannot describe its dtype or rank");
  const Shape shape(std::span(array.shape_ptr(), array.ndim()));
  const Shape strides(std::span(array.stride_ptr(), array.ndim()));
  const auto* data = static_cast<const std::byte*>(array.data());
  try {
    return Tensor(TensorView(own, shape, strides, data), owner_of(std::move(array)));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(refusal(path, error.what()));
  }
}

/// Returns the dtype of a buffer format, or nothing for formats of more than one letter: they have another byte order
/// or are not numbers.
std::optional<DType> dtype_of_format(const char* format) {
  if (format == nullptr || format[0] == 0 || format[1] != 0) return std::nullopt;
  switch (format[0]) {
    case '?': return dtypes::boolean;
    case 'b': return levada::dtype_of<signed char>();
    case 'B': return levada::dtype_of<unsigned char>();
    case 'h': return levada::dtype_of<short>();
    case 'H': return levada::dtype_of<unsigned short>();
    case 'i': return levada::dtype_of<int>();
    case 'I': return levada::dtype_of<unsigned>();
    case 'l': return levada::dtype_of<long>();
    case 'L': return levada::dtype_of<unsigned long>();
    case 'q': return levada::dtype_of<long long>();
    case 'Q': return levada::dtype_of<unsigned long long>();
    case 'e': return dtypes::float16;
    case 'f': return dtypes::float32;
    case 'd': return dtypes::float64;
    default: return std::nullopt;
  }
}

/// A view of an array's memory through the buffer protocol, released on destruction.
class ArrayBuffer {
 public:
  explicit ArrayBuffer(nb::handle array) {
    is_held_ = PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) == 0;
    if (!is_held_) PyErr_Clear();
  }
  ~ArrayBuffer() {
    if (is_held_) PyBuffer_Release(&buffer_);
  }
  ArrayBuffer(const ArrayBuffer&) = delete;
  ArrayBuffer& operator=(const ArrayBuffer&) = delete;
  const Py_buffer* get() const { return is_held_ ? &buffer_ : nullptr; }

 private:
  Py_buffer buffer_;
  bool is_held_;
};

/// The number of numpy's dtype whose scalars are views of an array's fields.
constexpr int void_type = 20;

/// Returns the result of make(), or nothing if it throws InvalidArgument. from_python() then throws that with the path.
template <typename Make>
std::optional<TensorView> unless_refused(const Make& make) {
  try {
    return make();
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

/// Returns the elements of a buffer if its format has a dtype and its strides are whole elements.
std::optional<TensorView> view_of(const Py_buffer& buffer) {
  const auto dtype = dtype_of_format(buffer.format);
  if (!dtype || static_cast<std::size_t>(buffer.ndim) > Shape::max_rank) return std::nullopt;
  Shape shape, strides;
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.strides[i] % buffer.itemsize != 0) return std::nullopt;
    shape.push_back(buffer.shape[i]);
    strides.push_back(buffer.strides[i] / buffer.itemsize);
  }
  return TensorView(*dtype, shape, strides, static_cast<const std::byte*>(buffer.buf));
}

/// Returns whether numpy's type number denotes bool, an integer, a float or a complex number.
constexpr bool is_number(int type) {
  constexpr int bool_type = 0, long_double_complex_type = 16, half_type = 23;
  return (type >= bool_type && type <= long_double_complex_type) || type == half_type;
}

Tensor from_array(nb::handle value, const std::string& path) {
  nb::object array = nb::borrow(value);
  const nb::object type = array.attr("dtype");
  std::optional<DType> dtype;
  // Query the name only if needed: numpy builds it anew each time, in Python.
  if (!is_number(nb::cast<int>(type.attr("num")))) {
    const auto name = text_of(type.attr("name"));
    dtype = disguised(name);
    if (!dtype) throw_type_error(path, fmt::format("no tensor has elements of numpy's dtype {}", name));
    array = array.attr("view")(fmt::format("uint{}", dtype->bits));
  }
  if (!nb::cast<bool>(type.attr("isnative"))) {
    throw_type_error(
        path, fmt::format("its numbers are not in this machine's byte order (dtype {}); use astype()", text_of(type)));
  }
  return view_of(array, dtype, path);
}

/// Returns the functions that a class exports for its objects, or null if it has none of a known version.
const dlpack::ExchangeApi* exchange_of(const nb::object& type) {
  constexpr auto name = "dlpack_exchange_api";
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  const auto* exchange = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (exchange != nullptr && exchange->major != 1) exchange = exchange->previous;
  return exchange;
}

/// Converts a tensor of torch's class or of a derived class.
Tensor from_torch(nb::handle value, const std::string& path) {
  nb::object tensor = value.attr("detach")();
  const auto device = text_of(tensor.attr("device").attr("type"));
  // Even if pickled, it would arrive on the device of the rank that made it.
  if (device != "cpu") throw Unsupported(fmt::format("{} is on {}; batches must be on the CPU", path, device));
  if (text_of(tensor.attr("layout")) != "torch.strided") {
    throw_type_error(path, fmt::format("its layout is {}; make it dense", text_of(tensor.attr("layout"))));
  }
  tensor = tensor.attr("resolve_conj")().attr("resolve_neg")();
  const auto name = text_of(tensor.attr("dtype")).substr(std::string_view("torch.").size());
  if (name.starts_with("int") || name.starts_with("uint") || name.starts_with("bits")) {
    const auto size = name.substr(name.find_first_of("0123456789"));
    if (size != "8" && size != "16" && size != "32" && size != "64") {
      throw_type_error(path, fmt::format("its dtype is torch.{}; send it as uint8", name));
    }
  }
  const auto dtype = disguised(name);
  if (dtype) tensor = tensor.attr("view")(imported("torch").attr(dtype->bits == 8 ? "uint8" : "int16"));
  return view_of(tensor, dtype, path);
}

nb::object export_to_torch(const Tensor& tensor, DType dtype) {
  const auto& view = tensor.view();
  const std::vector<std::size_t> shape(view.shape().begin(), view.shape().end());
  nb::capsule owner(new Tensor(tensor), [](void* held) noexcept { delete static_cast<Tensor*>(held); });
  auto* data = const_cast<std::byte*>(view.data());
  return nb::cast(nb::ndarray<nb::pytorch, nb::device::cpu>(
      data, shape.size(), shape.data(), owner, view.strides().begin(), {dtype.code, dtype.bits, dtype.lanes}));
}

/// Converts to the type `dtype`, which is as large as the tensor's.
nb::object to_torch(const Tensor& tensor, DType dtype, const dlpack::ExchangeApi* exchange) {
  if (exchange == nullptr) return export_to_torch(tensor, dtype);
  void* made = nullptr;
  auto managed = dlpack::to_dlpack_versioned(tensor);
  managed->flags &= ~dlpack::flag_read_only;
  managed->tensor.dtype = dtype;
  if (exchange->from_managed(managed.release(), &made) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(made));
}

/// Returns for example "float8_e4m3fn", or "float4_e2m1fn_x2" if a byte holds several.
std::string torch_name(DType dtype) {
  const std::string name = DType{dtype.code, dtype.bits, 1}.name();
  return dtype.lanes == 1 ? name : fmt::format("{}_x{}", name, dtype.lanes);
}

nb::object to_torch(const Tensor& tensor, const dlpack::ExchangeApi* exchange) {
  const DType dtype = tensor.dtype();
  if (!is_disguised(dtype)) return to_torch(tensor, dtype, exchange);
  const auto given = to_torch(tensor, dtype.bytes(1) == 1 ? dtypes::uint8 : dtypes::int16, exchange);
  return given.attr("view")(imported("torch").attr(torch_name(dtype).c_str()));
}

/// Returns whether the elements are ordered as in torch's channels_last or channels_last_3d, and not in C order.
bool is_channels_last(const TensorView& view) {
  const auto& shape = view.shape();
  const std::size_t rank = shape.rank();
  if ((rank != 4 && rank != 5) || view.is_contiguous()) return false;
  std::int64_t expected = 1;
  const auto follows = [&](std::size_t dim) {
    const bool is_next = shape[dim] == 1 || view.strides()[dim] == expected;
    expected *= shape[dim];
    return is_next;
  };
  bool follow = follows(1);
  for (std::size_t dim = rank - 1; dim > 1; --dim) follow = follows(dim) && follow;
  return follows(0) && follow;
}

nb::object with_traits(nb::object tensor, int traits) {
  if (traits == 0) return tensor;
  const nb::object torch = imported("torch");
  if ((traits & TorchTraits::channels_last) != 0) {
    const bool is_3d = nb::cast<int>(tensor.attr("dim")()) == 5;
    const nb::object format = torch.attr(is_3d ? "channels_last_3d" : "channels_last");
    tensor = tensor.attr("contiguous")(nb::arg("memory_format") = format);
  }
  const bool requires_grad = (traits & TorchTraits::requires_grad) != 0;
  if ((traits & TorchTraits::parameter) != 0) return torch.attr("nn").attr("Parameter")(tensor, requires_grad);
  return requires_grad ? nb::object(tensor.attr("requires_grad_")()) : tensor;
}

}  // namespace

TensorKind kind_of_tensors(const std::string& name) {
  if (name == "numpy") return TensorKind::array;
  if (name == "torch") return TensorKind::torch;
  throw InvalidArgument(fmt::format("tensors is \"{:.40}\"; it must be one of numpy, torch", name));
}

void TensorLibraries::refresh() {
  if (array_.is_none()) {
    array_ = class_in("numpy", "ndarray");
    generic_ = class_in("numpy", "generic");
  }
  if (torch_.is_none()) {
    torch_ = class_in("torch", "Tensor");
    torch_exchange_ = exchange_of(torch_);
    parameter_ = class_in("torch.nn.parameter", "Parameter");
    is_neg_ = nb::getattr(torch_, "is_neg", nb::none());
    is_conj_ = nb::getattr(torch_, "is_conj", nb::none());
    int8_ = class_in("torch", "int8");
    uint8_ = class_in("torch", "uint8");
  }
}

bool TensorLibraries::is_plain_torch(nb::handle value) const {
  const nb::handle type(Py_TYPE(value.ptr()));
  return type.is(torch_) || type.is(parameter_);
}

TensorKind TensorLibraries::torch_kind(nb::handle value, const TensorView& view) const {
  int kind = static_cast<int>(TensorKind::torch);
  if (nb::cast<bool>(value.attr("requires_grad"))) kind += TorchTraits::requires_grad;
  if (nb::handle(Py_TYPE(value.ptr())).is(parameter_)) kind += TorchTraits::parameter;
  if (is_channels_last(view)) kind += TorchTraits::channels_last;
  return static_cast<TensorKind>(kind);
}

std::optional<TensorView> TensorLibraries::plain_view(nb::handle value) const {
  const bool is_plain = nb::handle(Py_TYPE(value.ptr())).is(torch_);
  if (!is_plain || torch_exchange_ == nullptr || torch_exchange_->to_fields == nullptr) return std::nullopt;
  dlpack::TensorFields fields;
  if (torch_exchange_->to_fields(value.ptr(), &fields) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const bool is_known =
      fields.device.is_cpu() && fields.dtype.is_known() && static_cast<std::size_t>(fields.ndim) <= Shape::max_rank;
  if (!is_known) return std::nullopt;
  // Torch describes int4 and other small integers as bytes.
  if (fields.dtype == dtypes::int8 && !value.attr("dtype").is(int8_)) return std::nullopt;
  if (fields.dtype == dtypes::uint8 && !value.attr("dtype").is(uint8_)) return std::nullopt;
  // Only complex numbers, or parts of them, can be read as their negatives.
  const bool is_complex = fields.dtype.code == dtypes::complex64.code;
  if (is_complex && nb::cast<bool>(is_conj_(value))) return std::nullopt;
  if ((is_complex || fields.dtype.code == dtypes::float32.code) && nb::cast<bool>(is_neg_(value))) return std::nullopt;
  return unless_refused([&] { return dlpack::view_of(fields); });
}

std::optional<Tensor> TensorLibraries::plain_tensor(nb::handle value) const {
  const auto view = plain_view(value);
  return view ? std::optional(Tensor(*view, owner_of(nb::borrow(value)))) : std::nullopt;
}

std::optional<Tensor> TensorLibraries::plain_array(nb::handle value) const {
  if (!nb::handle(Py_TYPE(value.ptr())).is(array_)) return std::nullopt;
  const ArrayBuffer buffer(value);
  if (buffer.get() == nullptr) return std::nullopt;
  const auto view = unless_refused([&] { return view_of(*buffer.get()); });
  return view ? std::optional(Tensor(*view, owner_of(nb::borrow(value)))) : std::nullopt;
}

nb::object TensorLibraries::detached(nb::handle value, bool is_ours) const {
  const nb::handle type(Py_TYPE(value.ptr()));
  if (type.is(torch_)) {
    const bool is_plain = plain_view(value).has_value() && !nb::cast<bool>(value.attr("requires_grad")) &&
                          nb::len(nb::object(value.attr("__dict__"))) == 0;
    return is_plain ? value.attr("clone")() : nb::object();
  }
  const bool is_array = type.is(array_);
  if (!is_array && !is_instance(value, generic_)) return {};
  const nb::object dtype = value.attr("dtype");
  if (nb::cast<bool>(dtype.attr("hasobject"))) return {};
  if (!is_array) return nb::cast<int>(dtype.attr("num")) == void_type ? nb::object() : nb::borrow(value);
  const nb::object flags = value.attr("flags");
  if (is_ours && value.attr("base").is_none() && nb::cast<bool>(flags.attr("owndata"))) return nb::borrow(value);
  nb::object copy = value.attr("copy")("K");
  if (!nb::cast<bool>(flags.attr("writeable"))) copy.attr("flags").attr("writeable") = false;
  return copy;
}

bool TensorLibraries::is_tensor(nb::handle value, TensorKind& kind) const {
  if (is_instance(value, torch_)) kind = TensorKind::torch;
  else if (is_instance(value, array_)) kind = TensorKind::array;
  else if (is_instance(value, generic_)) kind = TensorKind::scalar;
  else if (nb::hasattr(nb::handle(Py_TYPE(value.ptr())), "__dlpack__")) kind = TensorKind::array;
  else return false;
  return true;
}

bool TensorLibraries::is_text_or_time(nb::handle value) const {
  constexpr int bytes_type = 18, text_type = 19, date_type = 21, duration_type = 22;
  if (!is_instance(value, array_) && !is_instance(value, generic_)) return false;
  const int type = nb::cast<int>(value.attr("dtype").attr("num"));
  return type == bytes_type || type == text_type || type == date_type || type == duration_type;
}

Tensor TensorLibraries::from_python(nb::handle value, TensorKind kind, const std::string& path) const {
  if (kind == TensorKind::torch) {
    if (!is_plain_torch(value)) {
      const auto type = text_of(nb::handle(Py_TYPE(value.ptr())).attr("__name__"));
      throw_type_error(path, fmt::format("a {} is more than its elements; pass {}", type, plain_form(value)));
    }
    auto plain = plain_tensor(value);
    return plain ? *std::move(plain) : from_torch(value, path);
  }
  if (kind == TensorKind::scalar) return from_array(imported("numpy").attr("asarray")(value), path);
  if (auto plain = plain_array(value)) return *std::move(plain);
  if (!is_instance(value, array_)) return view_of(value, std::nullopt, path);
  const auto type = text_of(nb::handle(Py_TYPE(value.ptr())).attr("__name__"));
  if (type != "ndarray" && type != "memmap") {
    throw_type_error(path, fmt::format("a {} is more than its elements; pass {}", type, plain_form(value)));
  }
  return from_array(value, path);
}

nb::object TensorLibraries::to_python(const Tensor& tensor, TensorKind kind, bool writable) const {
  if (is_torch(kind)) {
    if (torch_.is_none()) throw Unsupported("the batch holds torch tensors; import torch on every rank");
    return with_traits(to_torch(tensor, torch_exchange_), static_cast<int>(kind) & TorchTraits::all);
  }
  auto array = arrays_.make(tensor, writable);
  return kind == TensorKind::scalar ? nb::object(array[nb::tuple()]) : array;
}

}  // namespace levada::python
