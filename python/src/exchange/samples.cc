#include "python/src/exchange/samples.h"

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/tree/codec.h"
#include "python/src/base/callables.h"
#include "python/src/batch/trees.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// The lengths of one item's sequences, in tokens.
using Lengths = std::vector<std::int64_t>;

std::int64_t integer(nb::handle number) {
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  const std::int64_t value = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

/// Accepts one length, a list of lengths, or None for each item.
Seqlens seqlens_of(nb::handle given) {
  Seqlens made;
  Lengths lengths;
  for (const nb::handle item : nb::iter(given)) {
    lengths.clear();
    if (item.is_none()) {
      made.push_absent();
      continue;
    }
    if (PyIndex_Check(item.ptr()) != 0) lengths.push_back(integer(item));
    else {
      for (const nb::handle length : nb::iter(item)) lengths.push_back(integer(length));
    }
    made.push_back(lengths);
  }
  return made;
}

/// Returns Python's form: one list per item, None for an absent one.
std::vector<std::optional<Lengths>> lengths_of(const Seqlens& seqlens) {
  std::vector<std::optional<Lengths>> lengths(seqlens.size());
  for (std::size_t i = 0; i < seqlens.size(); ++i) {
    if (seqlens.has(i)) lengths[i].emplace(seqlens[i].begin(), seqlens[i].end());
  }
  return lengths;
}

/// Accepts "int64", numpy.int64, numpy.dtype("int64") or torch.int64.
DType dtype_of(nb::handle given) {
  const bool is_class = nb::hasattr(given, "__name__");
  const auto name = nb::cast<std::string>(nb::str(is_class ? nb::object(given.attr("__name__")) : nb::borrow(given)));
  const std::string_view prefix = "torch.";
  return DType::parse(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

bool has_elements(const Tree& tree) {
  if (!tree.is_leaf()) return std::ranges::any_of(tree.container().children, has_elements);
  const auto* tensor = std::get_if<Tensor>(&tree.leaf());
  return tensor != nullptr && tensor->shape().rank() > 0;
}

/// Returns the value as batches store it.
PlainValue value_of(nb::handle value, const std::string& name) {
  const auto place = [&] { return fmt::format("values['{}']", printable(name)); };
  if (auto leaf = plain_leaf(value, place); leaf && !std::holds_alternative<Bytes>(*leaf)) {
    return std::visit(
        [](auto&& plain) -> PlainValue {
          if constexpr (std::is_constructible_v<PlainValue, decltype(plain)>) return std::move(plain);
          else return None{};
        },
        *std::move(leaf));
  }
  const Tree tree = to_tree(value, Allowed::program, place());
  if (has_elements(tree)) {
    throw nb::type_error(fmt::format("{} holds a tensor; tensors belong among the fields", place()).c_str());
  }
  return encode_tree(tree);
}

/// `what` is the kind of the key in the TypeError for a key that is not a str. Throws UnicodeEncodeError for a str
/// without UTF-8 encoding.
std::string name_of(nb::handle key, const char* what) {
  if (PyUnicode_Check(key.ptr()) != 0) return std::string(utf8_of(key));
  throw nb::type_error(fmt::format("keys of {} must be str, got {}", what, nb::repr(key).c_str()).c_str());
}

/// Accepts a mapping, or None for an empty one.
nb::dict dict_of(nb::handle mapping) {
  nb::dict made;
  if (!mapping.is_none()) made.update(mapping);
  return made;
}

PlainValues values_of(const nb::dict& given) {
  PlainValues values;
  for (const auto& [key, value] : given) {
    const auto name = name_of(key, "values");
    values.emplace(name, value_of(value, name));
  }
  return values;
}

nb::dict values_at(const Samples& samples, std::size_t position) {
  nb::dict values;
  for (const auto& [name, value] : samples.batch.values(position)) {
    values[nb::cast(name)] = std::visit(
        [](const auto& plain) -> nb::object {
          using T = std::decay_t<decltype(plain)>;
          if constexpr (std::is_same_v<T, None>) return nb::none();
          else if constexpr (std::is_same_v<T, Bytes>) return from_message(plain, Allowed::program);
          else return nb::cast(plain);
        },
        value);
  }
  return values;
}

/// Returns the elements of a tensor of `samples`. Throws Python's TypeError, naming `path`, for a tensor that an
/// exchange would not preserve.
Tensor tensor_of(Samples& samples, const TensorLibraries& libraries, nb::handle value, TensorKind kind,
                 const std::string& path) {
  Tensor tensor = libraries.from_python(value, kind, path);
  if (kind != TensorKind::torch) return tensor;
  const int traits = static_cast<int>(libraries.torch_kind(value, tensor.view())) & TorchTraits::all;
  if ((traits & (TorchTraits::requires_grad | TorchTraits::parameter)) != 0) {
    const char* what = (traits & TorchTraits::parameter) != 0 ? "is a torch.nn.Parameter" : "requires gradients";
    throw nb::type_error(fmt::format("{} {}, which cannot cross; pass its detach()", path, what).c_str());
  }
  samples.kind = kind;
  return tensor;
}

/// Each item is one tensor or None.
void set_items(Samples& samples, std::string name, nb::handle items, nb::handle seqlens) {
  const TensorLibraries libraries;
  std::vector<std::optional<Tensor>> tensors;
  Seqlens lengths;
  SampleKey key{std::move(name), {}, {}};
  for (const nb::handle item : nb::iter(items)) {
    if (item.is_none()) {
      tensors.emplace_back();
      lengths.push_absent();
      continue;
    }
    TensorKind kind{};
    const auto path =
        tensors.size() < samples.batch.size()
            ? fmt::format("key {} of sample {}", printable(key.name), printable(samples.batch.ids()[tensors.size()]))
            : fmt::format("key {}, item {}", printable(key.name), tensors.size());
    if (!libraries.is_tensor(item, kind)) throw nb::type_error(fmt::format("{} is no tensor", path).c_str());
    Tensor tensor = tensor_of(samples, libraries, item, kind, path);
    if (tensor.shape().rank() == 0) throw InvalidArgument(fmt::format("{} has no dimension of tokens", path));
    const std::int64_t tokens = tensor.shape()[0];
    lengths.push_back(std::span(&tokens, 1));
    if (key.dtype.bits == 0) {
      key.dtype = tensor.dtype();
      key.trailing = Shape(std::span(tensor.shape().begin() + 1, tensor.shape().end()));
    }
    tensors.emplace_back(std::move(tensor));
  }
  if (!seqlens.is_none()) lengths = seqlens_of(seqlens);
  samples.changing().set_items(std::move(key), tensors, std::move(lengths));
}

void set(Samples& samples, std::string key, nb::handle data, nb::handle seqlens) {
  const TensorLibraries libraries;
  TensorKind kind{};
  if (!libraries.is_tensor(data, kind)) return set_items(samples, std::move(key), data, seqlens);
  Tensor packed = tensor_of(samples, libraries, data, kind, fmt::format("key {}", key));
  auto lengths = seqlens.is_none() ? Seqlens::one_each(Lengths(samples.batch.size(), 1)) : seqlens_of(seqlens);
  samples.changing().set(std::move(key), std::move(packed), std::move(lengths));
}

void set_meta(Samples& samples, std::string key, nb::handle dtype, nb::handle seqlens, const Lengths& trailing) {
  samples.changing().set({std::move(key), dtype_of(dtype), Shape(trailing)}, seqlens_of(seqlens));
}

Samples make(std::vector<std::string> ids, const nb::dict& fields, const nb::dict& seqlens, const nb::list& values) {
  Samples samples{SampleBatch(std::move(ids))};
  for (const auto& [key, data] : fields) {
    set(samples, name_of(key, "fields"), data, seqlens.contains(key) ? nb::object(seqlens[key]) : nb::none());
  }
  for (const auto& [key, lengths] : seqlens) {
    const auto name = name_of(key, "seqlens");
    if (fields.contains(key)) continue;
    throw InvalidArgument(fmt::format("seqlens has key {}, but fields does not", name));
  }
  if (values.size() != 0 && values.size() != samples.batch.size()) {
    throw InvalidArgument(fmt::format("there are {} values for {} samples", values.size(), samples.batch.size()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    samples.batch.set_values(i, values_of(dict_of(nb::object(values[i]))));
  }
  return samples;
}

nb::object packed(const Samples& samples, const std::string& key) {
  return TensorLibraries().to_python(samples.batch.packed(key), samples.kind);
}

nb::object item(const Samples& samples, const std::string& key, std::size_t position) {
  const auto tensor = samples.batch.item(key, position);
  return tensor ? TensorLibraries().to_python(*tensor, samples.kind) : nb::object(nb::none());
}

nb::object sequence(const Samples& samples, const std::string& key, std::size_t position, std::size_t number) {
  return TensorLibraries().to_python(samples.batch.sequence(key, position, number), samples.kind);
}

std::vector<SampleBatch> cores_of(const std::vector<Samples>& batches) {
  std::vector<SampleBatch> cores;
  for (const Samples& each : batches) cores.push_back(each.batch);
  return cores;
}

std::vector<Samples> with_kind(std::vector<SampleBatch> batches, TensorKind kind) {
  std::vector<Samples> made;
  for (SampleBatch& batch : batches) made.push_back({std::move(batch), kind});
  return made;
}

Samples gather(const std::vector<Samples>& batches) {
  const bool torch = std::ranges::any_of(batches, [](const Samples& each) { return each.kind == TensorKind::torch; });
  return {SampleBatch::gather(cores_of(batches)), torch ? TensorKind::torch : TensorKind::array};
}

/// `parts` are counts or lists of positions.
std::vector<Samples> split(const Samples& samples, nb::handle parts) {
  std::vector<std::size_t> counts;
  if (nb::try_cast(parts, counts)) return with_kind(samples.batch.split(counts), samples.kind);
  Partition partition;
  if (nb::try_cast(parts, partition)) return with_kind(samples.batch.split(partition), samples.kind);
  throw nb::type_error("parts must be counts, or lists of positions from 0 on");
}

Samples select(const Samples& samples, const std::optional<std::vector<std::string>>& ids,
               const std::optional<std::vector<std::string>>& keys) {
  SampleBatch chosen = ids ? samples.batch.select_ids(*ids) : samples.batch;
  return {keys ? chosen.select_keys(*keys) : std::move(chosen), samples.kind};
}

void update(Samples& samples, const Samples& other) {
  samples.changing().update(other.batch);
  if (other.kind == TensorKind::torch) samples.kind = other.kind;
}

void bind_fields(nb::class_<Samples>& type) {
  type.def("set", &set, nb::arg("key"), nb::arg("data"), nb::arg("seqlens") = nb::none(),
           nb::sig("def set(self, key: str, data: typing.Any, seqlens: collections.abc.Sequence[int | "
                   "collections.abc.Sequence[int] | None] | None = None) -> None"),
           "Adds a key, or replaces it. data: one tensor, [sum of lengths, trailing...]; or a list with a tensor, "
           "[length, trailing...], for each id, or None if it is absent. seqlens: for each id its length in tokens, "
           "the lengths of its sequences, or None; by default one token for each id, and for a list one sequence each. "
           "Contiguous tensors are viewed, not copied. Raises InvalidArgument if lengths and tensors do not fit, "
           "TypeError for anything but a tensor on the CPU.")
      .def("set_meta", &set_meta, nb::arg("key"), nb::arg("dtype"), nb::arg("seqlens"), nb::arg("trailing") = Lengths(),
           nb::sig("def set_meta(self, key: str, dtype: typing.Any, seqlens: collections.abc.Sequence[int | "
                   "collections.abc.Sequence[int] | None], trailing: collections.abc.Sequence[int] = ()) -> None"),
           "Adds a key without data. dtype: torch's or numpy's, or a name.")
      .def("__getitem__", &packed, nb::arg("key"), nb::sig("def __getitem__(self, key: str) -> typing.Any"),
           "Returns all tokens of a key, [sum of lengths, trailing...]: a view if they are contiguous, as those of a "
           "tensor passed to set() and of its divisions are; otherwise a copy. A view of an array is read-only; a "
           "torch tensor cannot be, and must not be written. Raises InvalidArgument for an unknown key and for a meta.")
      .def("item", &item, nb::arg("key"), nb::arg("position"),
           nb::sig("def item(self, key: str, position: int) -> typing.Any"),
           "Returns the tokens of one id, as a view; None if the key is absent.")
      .def("sequence", &sequence, nb::arg("key"), nb::arg("position"), nb::arg("sequence"),
           nb::sig("def sequence(self, key: str, position: int, sequence: int) -> typing.Any"),
           "Returns one sequence of one id, as a view.")
      .def(
          "seqlens",
          [](const Samples& samples, const std::string& key) { return lengths_of(samples.batch.seqlens(key)); },
          nb::arg("key"), "Returns for each id the lengths of its sequences in tokens; None if the key is absent.")
      .def(
          "dtype", [](const Samples& samples, const std::string& key) { return samples.batch.key(key).dtype.name(); },
          nb::arg("key"), "\"int64\", \"bfloat16\", ...")
      .def(
          "trailing",
          [](const Samples& samples, const std::string& key) {
            const Shape& shape = samples.batch.key(key).trailing;
            return Lengths(shape.begin(), shape.end());
          },
          nb::arg("key"), "Returns the shape of one token: [] for scalars.")
      .def("values", &values_at, nb::arg("position"),
           nb::sig("def values(self, position: int) -> dict[str, typing.Any]"), "Returns the values of one id.")
      .def(
          "set_values",
          [](Samples& samples, std::size_t position, nb::handle values) {
            samples.changing().set_values(position, values_of(dict_of(values)));
          },
          nb::arg("position"), nb::arg("values"),
          nb::sig("def set_values(self, position: int, values: collections.abc.Mapping[str, typing.Any]) -> None"),
          "Replaces the values of one id: anything that a batch may hold, except tensors with dimensions.");
}

void bind_structure(nb::class_<Samples>& type) {
  type.def("__len__", [](const Samples& samples) { return samples.batch.size(); })
      .def_prop_ro(
          "ids", [](const Samples& samples) { return samples.batch.ids(); }, "The ids, in the batch's order.")
      .def_prop_ro(
          "keys", [](const Samples& samples) { return samples.batch.keys(); }, "The keys, ascending.")
      .def(
          "__contains__", [](const Samples& samples, const std::string& key) { return samples.batch.has_key(key); },
          nb::arg("key"), "Returns whether it has the key.")
      .def_prop_ro(
          "has_data", [](const Samples& samples) { return samples.batch.has_data(); },
          "Whether all keys have data; False for a meta.")
      .def_prop_ro(
          "nbytes", [](const Samples& samples) { return samples.batch.byte_count(); },
          "The bytes of all tensors, whether they have data or not.")
      .def(
          "meta",
          [](const Samples& samples) {
            return Samples{samples.batch.meta(), samples.kind};
          },
          "Returns the structure without the data.")
      .def(
          "to_json", [](const Samples& samples) { return samples.batch.to_json(); },
          "Returns the meta as one JSON object: {\"ids\": [...], \"keys\": {\"tokens\": {\"dtype\": \"int64\", "
          "\"trailing\": [], \"seqlens\": [[12], [3, 4], null]}}, \"values\": [{\"reward\": 1.5}, ...]}.")
      .def_static(
          "from_json", [](const std::string& text) { return Samples{SampleBatch::from_json(text)}; }, nb::arg("text"),
          "Returns the meta that to_json() wrote. Raises InvalidArgument, naming the mistake and its place, for other "
          "text.")
      .def(
          "__eq__",
          [](const Samples& samples, nb::handle other) {
            return nb::isinstance<Samples>(other) && samples.batch == nb::cast<const Samples&>(other).batch;
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"),
          "Whether ids, keys, lengths, values and bits are the same; for metas, all but the bits.")
      .def("__repr__", [](const Samples& samples) {
        return fmt::format("<SampleBatch: {} samples, keys {}, {} bytes{}>", samples.batch.size(),
                           fmt::join(samples.batch.keys(), ", "), samples.batch.byte_count(),
                           samples.batch.has_data() ? "" : ", no data");
      });
}

void bind_division(nb::class_<Samples>& type) {
  type.def_static("gather", &gather, nb::arg("batches"),
                  "Joins batches, one after the other; a key that one of them lacks is absent for its ids. Reverses "
                  "split() and unpack(). Raises InvalidArgument for an id that appears twice, and if dtype or "
                  "trailing shape of a key differ.")
      .def("split", &split, nb::arg("parts"),
           nb::sig("def split(self, parts: collections.abc.Sequence[int] | "
                   "collections.abc.Sequence[collections.abc.Sequence[int]]) -> list[SampleBatch]"),
           "Divides the batch into consecutive parts of these sizes, or into a part for each list of positions, such "
           "as balanced() returns. All keys stay together, and nothing is copied. Raises InvalidArgument unless every "
           "position is in exactly one part.")
      .def(
          "balanced",
          [](const Samples& samples, std::size_t parts, const std::string& key, bool equal, const std::string& cost) {
            return samples.batch.balanced(parts, key, equal ? PartSizes::equal : PartSizes::any,
                                          SampleCost::parse(cost));
          },
          nb::arg("parts"), nb::arg("key") = "", nb::kw_only(), nb::arg("equal") = false, nb::arg("cost") = "tokens",
          "Returns positions by part, such that the parts cost about the same, by the sequences of `key` or of all "
          "keys. equal: the numbers of ids differ by at most one. cost: \"tokens\" or \"flops\", as in levada.Balance. "
          "Raises InvalidArgument for no parts, another cost, and for fewer ids than parts.")
      .def(
          "unpack", [](const Samples& samples) { return with_kind(samples.batch.unpack(), samples.kind); },
          "Divides the batch into batches of one id each.")
      .def(
          "reorder",
          [](const Samples& samples, const std::vector<std::size_t>& order) {
            return Samples{samples.batch.reorder(order), samples.kind};
          },
          nb::arg("order"),
          "Returns the ids at these positions, each of them once. select() with the ids of this batch reverses it.")
      .def("select", &select, nb::kw_only(), nb::arg("ids") = nb::none(), nb::arg("keys") = nb::none(),
           "Returns these ids, in this order, with these keys; all if None. Raises InvalidArgument for an unknown id "
           "or key.")
      .def(
          "rename",
          [](const Samples& samples, const std::map<std::string, std::string>& names) {
            return Samples{samples.batch.rename_keys(names), samples.kind};
          },
          nb::arg("names"), nb::sig("def rename(self, names: collections.abc.Mapping[str, str]) -> SampleBatch"),
          "Renames keys; others keep their names. Raises InvalidArgument for an unknown key, and if two keys would "
          "have one name.")
      .def("update", &update, nb::arg("other"),
           "Adds the keys and values of a batch of the same ids, in any order, replacing existing ones. Raises "
           "InvalidArgument if the ids differ.");
}

}  // namespace

SampleBatch& Samples::changing() {
  if (readers > 0) throw InvalidArgument("this SampleBatch is being stored by another thread; change it afterwards");
  return batch;
}

void bind_samples(nb::module_& module) {
  nb::class_<Samples> type(
      module, "SampleBatch",
      "Samples by id. Each key has for every id one or several sequences of tokens, each token a tensor of the key's "
      "dtype and trailing shape, or is absent for that id. Each id may also have plain values. A batch without data, a "
      "meta, has the same structure. Tensors are returned as torch tensors if a torch tensor was put in, otherwise as "
      "numpy arrays. Divisions, selections and joined batches share memory.");
  type.def(
      "__init__",
      [](Samples* self, std::vector<std::string> ids, const nb::object& fields, const nb::object& seqlens,
         const nb::object& values) {
        new (self) Samples(
            make(std::move(ids), dict_of(fields), dict_of(seqlens), values.is_none() ? nb::list() : nb::list(values)));
      },
      nb::arg("ids"), nb::arg("fields") = nb::none(), nb::arg("seqlens") = nb::none(), nb::kw_only(),
      nb::arg("values") = nb::none(),
      nb::sig("def __init__(self, ids: collections.abc.Sequence[str], fields: collections.abc.Mapping[str, typing.Any] "
              "| None = None, seqlens: collections.abc.Mapping[str, collections.abc.Sequence[int | "
              "collections.abc.Sequence[int] | None]] | None = None, *, values: "
              "collections.abc.Sequence[collections.abc.Mapping[str, typing.Any]] | None = None) -> "
              "None"),
      "fields and seqlens: by key, as for set(); values: one mapping for each id. Raises InvalidArgument for an empty "
      "id or one that appears twice.");
  bind_fields(type);
  bind_structure(type);
  bind_division(type);
}

}  // namespace levada::python
