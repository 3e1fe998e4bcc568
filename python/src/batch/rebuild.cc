#include "python/src/batch/rebuild.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/tree/codec.h"
#include "python/src/batch/marks.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// A leaf, or a container of parts, with the Python objects that are the same for every batch.
struct Part {
  enum class Form { leaf, none, dict, list, tuple, object };
  Form form = Form::leaf;
  std::size_t leaf = 0;  ///< its index
  char mark = unmarked;

  std::vector<nb::object> keys;  ///< for a dict
  std::vector<Part> children;
  nb::object class_name, names;           ///< for an object
  std::shared_ptr<const FlatTree> extra;  ///< an object's additional data; null for none
};

nb::object key_of(const Key& key) {
  if (const auto* number = std::get_if<std::int64_t>(&key)) return nb::int_(*number);
  const auto& name = std::get<std::string>(key);
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), nullptr);
  if (text == nullptr) throw nb::python_error();
  PyUnicode_InternInPlace(&text);
  return nb::steal(text);
}

/// Reads a message that depends on no earlier one.
FlatTree read_whole(Bytes message) {
  SchemaCache schemas;
  const auto memory = std::make_shared<Bytes>(std::move(message));
  return read_message(*memory, memory, schemas).content;
}

/// Counts the nesting of messages, which untrusted bytes might nest deeper than the stack allows.
class NestingGuard {
 public:
  explicit NestingGuard(int& depth) : depth_(depth) {
    if (depth_ == max_tree_depth) throw Unsupported(fmt::format("messages are nested {} deep", depth_));
    ++depth_;
  }
  ~NestingGuard() { --depth_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  int& depth_;
};

/// Finds the parts of a tree, and numbers its leaves.
class PartFinder {
 public:
  explicit PartFinder(char others) : others_(others) {}

  Part root(const Tree& tree) {
    if (tree.is_leaf() || tree.container().type_name != bare) return part(tree, others_);
    const Container& container = tree.container();
    if (container.children.empty()) return {.form = Part::Form::none};
    return part(container.children[0], Marks(container).of(0).value_or(others_));
  }
  /// Returns the mark of each leaf.
  std::vector<char> marks() && { return std::move(marks_); }

 private:
  Part part(const Tree& tree, char mark) {
    if (!tree.is_leaf()) return part(tree.container());
    marks_.push_back(mark);
    return {.leaf = marks_.size() - 1, .mark = mark};
  }

  Part part(const Container& container) {
    Part made{.form = form_of(container)};
    Marks marks(container);
    for (std::size_t i = 0; i < container.children.size(); ++i) {
      made.children.push_back(part(container.children[i], marks.of(i).value_or(others_)));
    }
    for (const Key& key : container.keys) made.keys.push_back(key_of(key));
    if (made.form != Part::Form::object) return made;
    made.class_name = nb::cast(container.type_name);
    nb::list names;
    for (const auto& key : made.keys) names.append(key);
    made.names = names;
    if (!marks.extra().empty()) made.extra = std::make_shared<FlatTree>(read_whole(marks.extra()));
    return made;
  }

  static Part::Form form_of(const Container& container) {
    if (!container.type_name.empty()) return Part::Form::object;
    if (container.kind == ContainerKind::list) return Part::Form::list;
    return container.kind == ContainerKind::tuple ? Part::Form::tuple : Part::Form::dict;
  }

  char others_;
  std::vector<char> marks_;
};

/// Returns for each leaf the earlier leaf of the same kind that is the same object, or its own index.
std::vector<std::size_t> find_shared(std::span<const LeafSpec> specs, const std::vector<char>& marks) {
  std::vector<std::size_t> shared(specs.size());
  std::map<std::pair<std::size_t, char>, std::size_t> first;  // by kind and by the leaf that owns the memory
  for (std::size_t i = 0; i < specs.size(); ++i) {
    shared[i] = i;
    if (i >= marks.size()) continue;
    if (specs[i].alias_of >= 0) {
      shared[i] = first.try_emplace({static_cast<std::size_t>(specs[i].alias_of), marks[i]}, i).first->second;
    }
    first.try_emplace({i, marks[i]}, i);
  }
  return shared;
}

}  // namespace

/// Data common to batches of one structure.
class Recipe {
 public:
  Recipe(const FlatTree& batch, TensorKind others) {
    PartFinder finder(static_cast<char>(others));
    root = finder.root(unflatten(batch));
    shared = find_shared(batch.schema.leaves(), std::move(finder).marks());
    for (std::size_t i = 0; i < shared.size(); ++i) has_shared = has_shared || shared[i] != i;
  }

  Part root;
  std::vector<std::size_t> shared;
  bool has_shared = false;
};

/// Makes one batch.
class Rebuilder::BatchBuilder {
 public:
  BatchBuilder(Rebuilder& by, const Recipe& recipe, const std::vector<Leaf>& leaves)
      : by_(by), recipe_(recipe), leaves_(leaves) {
    if (recipe.has_shared) made_.resize(leaves.size());
  }

  nb::object make(const Part& part) {
    switch (part.form) {
      case Part::Form::leaf: return leaf(part);
      case Part::Form::none: return nb::none();
      case Part::Form::dict: return dict(part);
      case Part::Form::list: return list(part);
      case Part::Form::tuple: return nb::tuple(list(part));
      case Part::Form::object:
        return by_.put_together_(part.class_name, part.names, list(part), extra(part), by_.allowed_in_python_);
    }
    return nb::none();
  }

 private:
  nb::object dict(const Part& part) {
    nb::dict dict;
    for (std::size_t i = 0; i < part.children.size(); ++i) {
      if (PyDict_SetItem(dict.ptr(), part.keys[i].ptr(), make(part.children[i]).ptr()) != 0) throw nb::python_error();
    }
    return dict;
  }

  nb::list list(const Part& part) {
    nb::list list;
    for (const Part& child : part.children) list.append(make(child));
    return list;
  }

  /// Rebuilds the data each time, since it becomes part of the object.
  nb::object extra(const Part& part) const { return part.extra ? by_.rebuild(*part.extra) : nb::none(); }

  nb::object leaf(const Part& part) {
    const Leaf& leaf = leaves_[part.leaf];
    if (const auto* tensor = std::get_if<Tensor>(&leaf)) return this->tensor(*tensor, part);
    if (const auto* bytes = std::get_if<Bytes>(&leaf)) return this->bytes(*bytes, part.mark);
    if (std::holds_alternative<None>(leaf)) return nb::none();
    if (const auto* truth = std::get_if<bool>(&leaf)) return nb::bool_(*truth);
    if (const auto* integer = std::get_if<std::int64_t>(&leaf)) return nb::int_(*integer);
    if (const auto* real = std::get_if<double>(&leaf)) return nb::float_(*real);
    return nb::cast(std::get<std::string>(leaf));
  }

  nb::object bytes(const Bytes& bytes, char mark) const {
    if (mark == plain) return this->plain_value(Plain::decode(bytes));
    nb::object value = nb::bytes(bytes.data(), bytes.size());
    if (mark != pickled) return value;
    if (by_.allowed_ != Allowed::any) {
      throw Unsupported("a batch holds a pickled object; pass allow_pickle=True on every rank");
    }
    return nb::module_::import_("pickle").attr("loads")(value);
  }

  nb::object plain_value(Plain value) const {
    nb::list form;
    form.append(by_.rebuild(read_whole(std::move(value.message))));
    return by_.put_together_(value.type_name, nb::list(), form, nb::none(), by_.allowed_in_python_);
  }

  /// Aliases share one Python object, as in the original batch.
  nb::object tensor(const Tensor& tensor, const Part& part) {
    const auto first = recipe_.shared[part.leaf];
    if (first != part.leaf) return made_[first];
    auto made = this->tensor(tensor, static_cast<TensorKind>(part.mark));
    if (recipe_.has_shared) made_[part.leaf] = made;
    return made;
  }

  nb::object tensor(const Tensor& tensor, TensorKind kind) const {
    if (!is_torch(kind)) {
      return by_.libraries_.to_python(tensor, kind, tensor.is_writable() && by_.access_ == TensorAccess::as_is);
    }
    if (by_.access_ == TensorAccess::without_torch) {
      throw InvalidArgument(
          "access is read_only, but the batch holds torch tensors, which can always be written; "
          "choose access=\"private\", \"copy\" or none");
    }
    if (tensor.is_writable() || by_.access_ == TensorAccess::shared) return by_.libraries_.to_python(tensor, kind);
    return by_.libraries_.to_python(Tensor::copy_of(tensor), kind);
  }

  Rebuilder& by_;
  const Recipe& recipe_;
  const std::vector<Leaf>& leaves_;
  std::vector<nb::object> made_;  ///< by leaf, if some are shared
};

Rebuilder::Rebuilder(Allowed allowed, TensorAccess access, TensorKind others)
    : allowed_(allowed),
      allowed_in_python_(static_cast<int>(allowed)),
      access_(access),
      others_(others),
      put_together_(nb::module_::import_("levada.batch.classes").attr("put_together")) {}
Rebuilder::~Rebuilder() = default;

nb::object Rebuilder::rebuild(const FlatTree& batch) {
  libraries_.refresh();
  const auto recipe = recipe_of(batch);
  const NestingGuard within(depth_);
  return BatchBuilder(*this, *recipe, batch.leaves).make(recipe->root);
}

nb::object Rebuilder::rebuild(const Tree& batch) {
  const auto flat = flatten(batch, last_);
  last_ = flat.schema;
  return rebuild(flat);
}

std::shared_ptr<const Recipe> Rebuilder::recipe_of(const FlatTree& batch) {
  constexpr std::size_t max_recipes = 64;
  const auto known = recipes_.find(batch.schema.fingerprint());
  if (known != recipes_.end()) return known->second;
  if (recipes_.size() == max_recipes) recipes_.clear();
  const auto recipe = std::make_shared<const Recipe>(batch, others_);
  recipes_.emplace(batch.schema.fingerprint(), recipe);
  return recipe;
}

}  // namespace levada::python
