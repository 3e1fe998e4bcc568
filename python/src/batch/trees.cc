#include "python/src/batch/trees.h"

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/cli/field_digests.h"
#include "levada/tree/codec.h"
#include "levada/tree/schema.h"
#include "python/src/base/bytes.h"
#include "python/src/base/escaped_text.h"
#include "python/src/batch/marks.h"
#include "python/src/batch/rebuild.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// The path to a part of a batch, converted to text only for error messages. The parts above must outlive it.
struct Path {
  const Path* above = nullptr;           ///< null for the whole
  const Container* container = nullptr;  ///< null for additional data of `above`, which is not a child
  std::size_t child = 0;
  std::string_view whole = "batch";

  /// Returns a text that can be shown on one line of a terminal.
  std::string text() const {
    if (above == nullptr) return std::string(whole);
    if (container == nullptr) return above->text() + ".state";
    if (container->keys.empty()) return fmt::format("{}[{}]", above->text(), child);
    const auto& key = container->keys[child];
    if (const auto* number = std::get_if<std::int64_t>(&key)) return fmt::format("{}[{}]", above->text(), *number);
    const auto name = printable(std::get<std::string>(key));
    return container->kind == ContainerKind::record ? fmt::format("{}.{}", above->text(), name)
                                                    : fmt::format("{}['{}']", above->text(), name);
  }
};

std::string refusal(const std::string& place, const std::string& why) {
  return fmt::format("{} cannot cross between ranks: {}", place, why);
}

[[noreturn]] void throw_type_error(const std::string& place, const std::string& why) {
  throw nb::type_error(refusal(place, why).c_str());
}

/// Python's TypeError for a container that contains itself. Not even a part of it is pickled.
struct ContainsItself final : nb::builtin_exception {
  explicit ContainsItself(const std::string& place)
      : nb::builtin_exception(nb::exception_type::type_error, refusal(place, "it contains itself").c_str()) {}
};

/// Marks a container as being taken apart. Throws ContainsItself if it already is.
class ContainerGuard {
 public:
  ContainerGuard(std::vector<PyObject*>& open, nb::handle container, const Path& path) : open_(open) {
    if (std::ranges::find(open, container.ptr()) != open.end()) throw ContainsItself(path.text());
    open.push_back(container.ptr());
  }
  ~ContainerGuard() { open_.pop_back(); }
  ContainerGuard(const ContainerGuard&) = delete;
  ContainerGuard& operator=(const ContainerGuard&) = delete;

 private:
  std::vector<PyObject*>& open_;
};

/// Throws if the text has no UTF-8 encoding.
std::string text_of(nb::handle value, const std::function<std::string()>& place) {
  Py_ssize_t bytes = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &bytes)) return {text, static_cast<std::size_t>(bytes)};
  const nb::python_error none;
  throw_type_error(place(),
                   fmt::format("{} has no UTF-8", nb::cast<std::string>(nb::steal(PyObject_ASCII(value.ptr())))));
}

/// Returns nothing for more than 64 bits.
std::optional<std::int64_t> integer(nb::handle value) {
  int overflow = 0;
  const auto number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return overflow == 0 ? std::optional<std::int64_t>(number) : std::nullopt;
}

Bytes bytes_of(nb::handle value) {
  const auto view = as_bytes({PyBytes_AsString(value.ptr()), static_cast<std::size_t>(PyBytes_Size(value.ptr()))});
  return {view.begin(), view.end()};
}

class ToTree {
 public:
  ToTree(Allowed allowed, const BatchClasses& classes, BatchMemory* memory = nullptr,
         std::shared_ptr<DeferredOwners> spent = nullptr)
      : allowed_(allowed), classes_(classes), memory_(memory), spent_(std::move(spent)) {}

  Tree root(nb::handle batch, const Path& path = {}) {
    char mark = unmarked;
    const auto nodes_outside = std::exchange(nodes_, 0);  // a tree within a leaf has separate nodes
    Tree tree = node(batch, path, mark);
    nodes_ = nodes_outside;
    if (!tree.is_leaf()) return tree;
    Container container{.kind = ContainerKind::list, .type_name = std::string(bare), .keys = {}, .children = {}};
    container.children.push_back(std::move(tree));
    if (mark != unmarked) container.state = State{{{step_of(container, 0), mark}}, {}}.encode();
    return Tree(std::move(container));
  }
  /// Returns the place of the tensors in a Block.
  std::optional<BatchMemory::Place> place() && { return std::move(place_); }

 private:
  /// Throws InvalidArgument beyond max_tree_nodes: containers that share children can have exponentially many nodes.
  Tree node(nb::handle value, const Path& path, char& mark) {
    if (++nodes_ > max_tree_nodes) {
      throw InvalidArgument(fmt::format("more than {} values in all; join them into tensors", max_tree_nodes));
    }
    if (allowed_ != Allowed::any) return part(value, path, mark);
    const int depth = depth_;
    const auto nodes = nodes_;
    try {
      return part(value, path, mark);
    } catch (const ContainsItself&) {
      throw;
    } catch (const nb::builtin_exception&) {
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
    }
    depth_ = depth;
    nodes_ = nodes;
    return pickle(value, path, mark);
  }

  /// Throws TypeError, Python's or C++'s, if the value can be transferred only as a pickle.
  Tree part(nb::handle value, const Path& path, char& mark) {
    if (auto leaf = plain_leaf(value, [&] { return path.text(); })) return *std::move(leaf);
    if (PyDict_CheckExact(value.ptr()) && has_plain_keys(value)) return dict(value, path);
    if (PyList_CheckExact(value.ptr())) return sequence(ContainerKind::list, value, path);
    if (PyTuple_CheckExact(value.ptr())) return sequence(ContainerKind::tuple, value, path);
    if (const auto plain = classes_.libraries.plain_tensor(value)) {
      mark = static_cast<char>(classes_.libraries.torch_kind(value, plain->view()));
      return lent(*plain);
    }
    TensorKind kind{};
    if (!classes_.libraries.is_tensor(value, kind)) return object(value, path, mark);
    if (is_torch(kind) && !classes_.libraries.is_plain_torch(value)) return object(value, path, mark);
    if (classes_.libraries.is_text_or_time(value)) return object(value, path, mark);
    const auto tensor = classes_.libraries.from_python(value, kind, path.text());
    mark = static_cast<char>(is_torch(kind) ? classes_.libraries.torch_kind(value, tensor.view()) : kind);
    return lent(tensor);
  }

  Tensor lent(const Tensor& tensor) {
    const auto& view = tensor.view();
    if (memory_ != nullptr && view.byte_count() > 0) {
      if (auto found = memory_->find(view.data())) {
        Tensor placed(view, found->block);
        if (!place_) place_ = std::move(found);
        return placed;
      }
    }
    return spent_ ? Tensor(view, DeferredOwners::later(spent_, tensor.owner())) : tensor;
  }

  /// Returns whether all keys are strings and integers, which need no class information.
  static bool has_plain_keys(nb::handle dict) {
    PyObject* key = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, nullptr) != 0;) {
      if (!PyUnicode_CheckExact(key) && !(PyLong_CheckExact(key) && integer(key))) return false;
    }
    return true;
  }

  Tree dict(nb::handle value, const Path& path) {
    const ContainerGuard opened(open_, value, path);
    Container container{.kind = ContainerKind::dict, .type_name = {}, .keys = {}, .children = {}};
    nb::list values;
    for (const auto& [key, child] : nb::borrow<nb::dict>(value)) {
      container.keys.push_back(key_of(key, path));
      values.append(child);
    }
    return children(std::move(container), values, {}, path);
  }

  Tree sequence(ContainerKind kind, nb::handle values, const Path& path) {
    const ContainerGuard opened(open_, values, path);
    return children({.kind = kind, .type_name = {}, .keys = {}, .children = {}}, values, {}, path);
  }

  /// Converts a value that is neither a leaf nor a plain container: an object of a class known to
  /// levada/batch/classes.py.
  Tree object(nb::handle value, const Path& path, char& mark) {
    const ContainerGuard opened(open_, value, path);
    const nb::object parts = classes_.take_apart(value, path.text(), static_cast<int>(allowed_));
    if (!parts.is_none()) {
      const auto form = nb::cast<std::string>(parts[0]);
      const auto type_name = nb::cast<std::string>(parts[1]);
      if (form == "leaf") {
        mark = plain;
        return Plain{type_name, encode_tree(root(nb::object(parts[3][0]), {.above = &path}))}.encode();
      }
      const auto kind = form == "dict" ? ContainerKind::dict : ContainerKind::record;
      Container container{.kind = kind, .type_name = type_name, .keys = {}, .children = {}};
      for (nb::handle key : nb::object(parts[2])) container.keys.push_back(key_of(key, path));
      const nb::object extra = parts[4];
      auto state = extra.is_none() ? Bytes{} : encode_tree(root(extra, {.above = &path}));
      return children(std::move(container), nb::object(parts[3]), std::move(state), path);
    }
    const auto name = nb::cast<std::string>(nb::handle(Py_TYPE(value.ptr())).attr("__qualname__"));
    throw_type_error(
        path.text(),
        fmt::format("its class is {}; register it with levada.register(), or pass allow_pickle=True", name));
  }

  static Tree pickle(nb::handle value, const Path& path, char& mark) {
    mark = pickled;
    try {
      const nb::object bytes = nb::module_::import_("pickle").attr("dumps")(value, 5);
      return bytes_of(bytes);
    } catch (const nb::python_error& error) {
      // Exceptions that end the process, and lack of memory, propagate.
      if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
      throw Unsupported(fmt::format("{} cannot cross between ranks: {}", path.text(), escaped_str(error.value())));
    }
  }

  Tree children(Container container, nb::handle values, Bytes extra, const Path& path) {
    if (++depth_ > max_tree_depth)
      throw_type_error(path.text(), fmt::format("it is nested more than {} deep", max_tree_depth));
    State state{{}, std::move(extra)};
    for (nb::handle value : values) {
      char mark = unmarked;
      const auto at = container.children.size();
      container.children.push_back(node(value, {&path, &container, at}, mark));
      if (mark != unmarked) state.marks.emplace_back(step_of(container, at), mark);
    }
    --depth_;
    container.state = state.encode();
    return Tree(std::move(container));
  }

  static Key key_of(nb::handle key, const Path& path) {
    if (PyUnicode_CheckExact(key.ptr())) return text_of(key, [&] { return path.text(); });
    return nb::cast<std::int64_t>(key);
  }

  Allowed allowed_;
  const BatchClasses& classes_;
  BatchMemory* memory_;
  std::shared_ptr<DeferredOwners> spent_;
  std::optional<BatchMemory::Place> place_;
  std::vector<PyObject*> open_;  ///< containers being taken apart, outermost first
  int depth_ = 0;
  std::size_t nodes_ = 0;  ///< number of nodes of the tree in progress
};

nb::bytes pack(nb::handle batch, bool allow_pickle) {
  return to_bytes(encode_tree(to_tree(batch, allowed_in_batches(allow_pickle))));
}

nb::object unpack(const nb::bytes& message, bool allow_pickle) {
  return from_message(view_of(message), allowed_in_batches(allow_pickle));
}

/// A move-only FieldDigests, for which Python's bindings need a separate type.
struct Digests : cli::FieldDigests {
  Digests() = default;
  Digests(Digests&&) = default;
};

std::map<std::string, std::string> digests_of(const Digests& content) {
  std::map<std::string, std::string> digests;
  for (const auto& field : content.fields()) digests[field.name] = field.digest;
  return digests;
}

nb::dict describe(const Digests& content) {
  nb::dict fields;
  for (const auto& field : content.fields()) {
    nb::dict described;
    described["digest"] = field.digest;
    described["dtype"] = field.dtype;
    described["shape"] = field.shape;
    fields[nb::cast(field.name)] = described;
  }
  return fields;
}

}  // namespace

BatchClasses::BatchClasses() {
  take_apart = nb::module_::import_("levada.batch.classes").attr("take_apart");
}

Tree to_tree(nb::handle batch, Allowed allowed, std::string_view name) {
  const BatchClasses classes;
  return ToTree(allowed, classes).root(batch, {.whole = name});
}

std::optional<Leaf> plain_leaf(nb::handle value, const std::function<std::string()>& place) {
  if (value.is_none()) return None{};
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyFloat_CheckExact(value.ptr())) return PyFloat_AsDouble(value.ptr());
  if (PyUnicode_CheckExact(value.ptr())) return text_of(value, place);
  if (PyBytes_CheckExact(value.ptr())) return bytes_of(value);
  if (!PyLong_CheckExact(value.ptr())) return std::nullopt;
  const auto number = integer(value);
  return number ? std::optional<Leaf>(*number) : std::nullopt;
}

nb::object from_message(ByteView message, Allowed allowed) {
  // The codec requires alignment, and tensors outlive `message`.
  const auto memory =
      Tensor::copy_of(TensorView(dtypes::uint8, Shape{static_cast<std::int64_t>(message.size())}, message.data()));
  SchemaCache schemas;
  const auto read = read_message(memory.bytes(), memory.owner(), schemas);
  return Rebuilder(allowed).rebuild(read.content);
}

Lent lend(nb::handle batch, Allowed allowed, BatchClasses& classes, BatchMemory* memory,
          const std::shared_ptr<DeferredOwners>& spent) {
  classes.libraries.refresh();
  ToTree to(allowed, classes, memory, spent);
  auto tree = to.root(batch);
  return {std::move(tree), std::move(to).place()};
}

void bind_trees(nb::module_& module) {
  module.def("pack", &pack, nb::arg("batch").none(), nb::kw_only(), nb::arg("allow_pickle") = false,
             nb::sig("def pack(batch: object, *, allow_pickle: bool = False) -> bytes"),
             "Returns a batch as the bytes of the message that crosses between ranks, for files and tests.");
  module.def(
      "unpack", &unpack, nb::arg("message"), nb::kw_only(), nb::arg("allow_pickle") = false,
      nb::sig("def unpack(message: bytes, *, allow_pickle: bool = False) -> typing.Any"),
      "Returns the batch that pack() encoded. Its numpy arrays are read-only views of one copy of the message. Raises "
      "CorruptMessage for invalid bytes, and Unsupported for a class that is not imported or that bytes may not name.");
  module.def("copied_bytes", &copied_bytes, "Returns the bytes of payload that this process has copied so far.");
  nb::class_<Digests>(module, "Digests", "A running digest of each tensor field of the added batches.")
      .def(nb::init<>())
      .def(
          "add",
          [](Digests& content, nb::handle batch, bool allow_pickle) {
            content.add(to_tree(batch, allowed_in_batches(allow_pickle)));
          },
          nb::arg("batch"), nb::kw_only(), nb::arg("allow_pickle") = false,
          nb::sig("def add(self, batch: object, *, allow_pickle: bool = False) -> None"),
          "Adds every tensor of a batch. Objects that cross as pickles add nothing.")
      .def("describe", &describe, nb::sig("def describe(self) -> dict[str, dict[str, typing.Any]]"),
           "Returns the digests with dtype and first shape of each field, as in the report of `levada feed --json`.")
      .def("fields", &digests_of,
           "Returns the digests by path, 32 hexadecimal digits each, as `levada feed --json` prints them for the same "
           "batches.");
}

}  // namespace levada::python
