// What flows through a pipeline: a Tree, or an object of a language that C++ does not look into.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/tree/tree.h"

namespace levada::pipeline {

/// A counted reference to an object of another language. What is done to a reference, its language does: on whatever
/// thread it happens.
class LanguageObject {
 public:
  struct Language {
    void (*retain)(void* object) noexcept;
    void (*release)(void* object) noexcept;
  };

  LanguageObject() = default;
  /// Takes over one reference to `object`. `language` outlives it.
  LanguageObject(void* object, const Language& language) : object_(object), language_(&language) {}
  LanguageObject(const LanguageObject& other) : object_(other.object_), language_(other.language_) {
    if (object_ != nullptr) language_->retain(object_);
  }
  LanguageObject(LanguageObject&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), language_(std::exchange(other.language_, nullptr)) {}
  LanguageObject& operator=(LanguageObject other) noexcept {
    std::swap(object_, other.object_);
    std::swap(language_, other.language_);
    return *this;
  }
  ~LanguageObject() {
    if (object_ != nullptr) language_->release(object_);
  }

  void* object() const { return object_; }
  /// Gives the reference away.
  void* detach() && { return std::exchange(object_, nullptr); }

 private:
  void* object_ = nullptr;
  const Language* language_ = nullptr;
};

using Item = std::variant<Tree, LanguageObject>;

/// An item that is an array, or a dict of arrays.
struct Arrays {
  std::vector<std::pair<std::string, Tensor>> fields;  ///< an array that is the whole item has no name
  int kind = 0;                                        ///< of array, if the language has several
};

/// What only the language of the items knows. The functions of a pipeline with LanguageObject items come with one;
/// TreeItemTraits is that of C++. Any thread may call, several at once.
class ItemTraits {
 public:
  virtual ~ItemTraits() = default;

  /// A batch: one item of many, in order.
  virtual Item list_of(std::vector<Item> items) const = 0;
  /// What zip gives.
  virtual Item tuple_of(std::vector<Item> items) const = 0;
  /// The elements of a batch. Throws InvalidArgument for what has none.
  virtual std::vector<Item> elements(Item item) const = 0;
  /// Returns views of the item's arrays. Throws InvalidArgument, naming the field, for what is no array.
  virtual Arrays arrays_of(const Item& item) const = 0;
  /// Returns the dict of these arrays.
  virtual Item dict_of(Arrays arrays) const = 0;

  /// The item as a Tree, and items of such Trees: in files. Throws InvalidArgument for an item that is more than
  /// containers of plain values and arrays.
  virtual Tree to_tree(const Item& item) const = 0;
  virtual std::vector<Item> from_trees(std::vector<Tree> trees) const = 0;

  /// Items on their way to another process: bytes, and beside them memory that is sent as it is. `buffers` stay valid
  /// as long as `hold`.
  struct Packed {
    Bytes head;
    std::vector<ByteView> buffers;
    std::shared_ptr<const void> hold;
  };
  virtual Packed pack(std::span<const Item> items) const = 0;
  /// The items again, of bytes that may lie. `buffers` are 64-byte aligned, this process's alone to read and write, and
  /// stay as long as `hold`. Throws CorruptMessage.
  virtual std::vector<Item> unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                   std::shared_ptr<const void> hold) const = 0;
};

}  // namespace levada::pipeline
