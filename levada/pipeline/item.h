// The items of a pipeline: Trees, or objects of another language that are opaque to C++.
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

/// A reference-counted object of another language, whose functions retain and release it on any thread.
class LanguageObject {
 public:
  struct Language {
    void (*retain)(void* object) noexcept;
    void (*release)(void* object) noexcept;
  };

  LanguageObject() = default;
  /// Takes ownership of one reference to `object`. `language` must outlive it.
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
  /// Releases ownership of the reference and returns it.
  void* detach() && { return std::exchange(object_, nullptr); }

 private:
  void* object_ = nullptr;
  const Language* language_ = nullptr;
};

using Item = std::variant<Tree, LanguageObject>;

/// An item that is an array, or a dict of arrays.
struct Arrays {
  std::vector<std::pair<std::string, Tensor>> fields;  ///< a single unnamed field for an item that is an array
  int kind = 0;                                        ///< array kind, if the language has several
};

/// Language-dependent operations on items. A pipeline whose functions use LanguageObject items needs matching traits;
/// C++ pipelines use TreeItemTraits. Thread-safe.
class ItemTraits {
 public:
  virtual ~ItemTraits() = default;

  /// Returns a batch: one item that holds `items`, in order.
  virtual Item list_of(std::vector<Item> items) const = 0;
  /// Returns the item that a zip yields.
  virtual Item tuple_of(std::vector<Item> items) const = 0;
  /// Returns the elements of a batch. Throws InvalidArgument for an item that has none.
  virtual std::vector<Item> elements(Item item) const = 0;
  /// Returns views of the item's arrays. Throws InvalidArgument, naming the field, if a value is not an array.
  virtual Arrays arrays_of(const Item& item) const = 0;
  /// Returns a dict of these arrays.
  virtual Item dict_of(Arrays arrays) const = 0;

  /// Prepares an item to be packed later: copies the memory and objects in it that its producer may change. Only pack()
  /// understands the result. Returns false, with the item unchanged, if that is impossible.
  virtual bool detach(Item& item) const = 0;

  /// Convert an item to a Tree, and such Trees back to items, for files. Throw InvalidArgument for an item that holds
  /// anything but containers of plain values and arrays.
  virtual Tree to_tree(const Item& item) const = 0;
  virtual std::vector<Item> from_trees(std::vector<Tree> trees) const = 0;

  /// Items serialized for another process: bytes, and separate buffers that are sent unchanged. `buffers` are valid as
  /// long as `hold`.
  struct Packed {
    Bytes head;
    std::vector<ByteView> buffers;
    std::shared_ptr<const void> hold;
  };
  virtual Packed pack(std::span<const Item> items) const = 0;
  /// Deserializes items from untrusted bytes. `buffers` are 64-byte aligned, private to this process, and valid as long
  /// as `hold`. Throws CorruptMessage.
  virtual std::vector<Item> unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                   std::shared_ptr<const void> hold) const = 0;
};

}  // namespace levada::pipeline
