#include "levada/pipeline/item_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "levada/base/fields.h"
#include "levada/base/hash.h"
#include "levada/pipeline/cursors.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

constexpr std::uint64_t file_magic = 0x32736d657469564cULL;  // "LVitems2"
constexpr std::uint64_t trailer_bytes = 24;
constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t chunk_nodes = 4096;

/// Returns a copy that shares no memory with `tree`; counts its nodes and bytes.
Tree copy_of(const Tree& tree, std::size_t& nodes, std::size_t& bytes) {
  ++nodes;
  if (tree.is_leaf()) {
    const auto* tensor = std::get_if<Tensor>(&tree.leaf());
    if (tensor == nullptr) {
      const auto* text = std::get_if<std::string>(&tree.leaf());
      const auto* blob = std::get_if<Bytes>(&tree.leaf());
      bytes += text != nullptr ? text->size() : blob != nullptr ? blob->size() : sizeof(std::int64_t);
      return tree;
    }
    bytes += tensor->view().byte_count();
    return Tensor::copy_of(tensor->view());
  }
  Container container = tree.container();
  for (Tree& child : container.children) child = copy_of(child, nodes, bytes);
  return container;
}

void make_writable(FlatTree& tree) {
  for (Leaf& leaf : tree.leaves) {
    if (auto* tensor = std::get_if<Tensor>(&leaf)) *tensor = Tensor(tensor->view(), tensor->owner(), true);
  }
}

}  // namespace

ItemFileWriter::ItemFileWriter(std::string path, std::string origin, mode_t mode) : file_(std::move(path), {}, mode) {
  contents_.origin = std::move(origin);
}

void ItemFileWriter::add(const Tree& item) {
  items_.push_back(copy_of(item, nodes_, bytes_));
  if (bytes_ >= chunk_bytes || nodes_ >= chunk_nodes) write_chunk();
}

void ItemFileWriter::write_chunk() {
  if (items_.empty()) return;
  const auto items = std::ssize(items_);
  auto message = encode_tree(Tree::list(std::exchange(items_, {})));
  bytes_ = nodes_ = 0;
  contents_.chunks.push_back({.offset = written_, .bytes = message.size(), .items = items, .hash = hash64(message)});
  message.resize(align_up(message.size(), leaf_alignment));
  file_.write(message);
  written_ += message.size();
}

void ItemFileWriter::finish() {
  write_chunk();
  const auto contents = encode(contents_);
  file_.write(contents);
  ByteWriter trailer;
  trailer.put(file_magic);
  trailer.put(std::uint64_t{contents.size()});
  trailer.put(hash64(contents));
  file_.write(std::move(trailer).take());
  file_.sync();
  file_.publish();
}

ItemFile::ItemFile(std::unique_ptr<File> file) : file_(std::move(file)) {
  const auto size = file_->identity().size;
  std::array<char, trailer_bytes> trailer{};
  if (size < trailer_bytes || read_fully(*file_, size - trailer_bytes, trailer) < trailer_bytes)
    fail("it is truncated");
  ByteReader in(std::as_bytes(std::span(trailer)));
  if (in.get<std::uint64_t>() != file_magic) fail("it is not a file of items of this version");
  const auto bytes = in.get<std::uint64_t>();
  const auto hash = in.get<std::uint64_t>();
  if (bytes > size - trailer_bytes) fail("its table is longer than the file");
  std::string table(bytes, '\0');
  const auto chunks_end = size - trailer_bytes - bytes;
  if (read_fully(*file_, chunks_end, table) < bytes || hash64(as_bytes(table)) != hash) fail("its table is damaged");
  try {
    contents_ = decode<ItemFileContents>(as_bytes(table));
  } catch (const CorruptMessage& error) {
    fail(error.what());
  }
  std::int64_t items = 0;
  for (const auto& chunk : contents_.chunks) {
    const auto end = checked_add(chunk.offset, chunk.bytes);
    if (!end || *end > chunks_end || chunk.items > max_count - items) fail("its table is wrong");
    ends_.push_back(items += chunk.items);
  }
}

void ItemFile::fail(std::string_view what) const {
  throw SourceError(fmt::format("{}: {}; remove it to have it made again", file_->path(), what));
}

ItemFile::Items ItemFile::read(std::int64_t number) const {
  const auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, number) - ends_.begin());
  const auto& chunk = contents_.chunks.at(index);
  const auto memory =
      std::make_shared<Tensor>(Tensor::empty(dtypes::uint8, Shape{static_cast<std::int64_t>(chunk.bytes)}));
  const auto bytes = memory->mutable_bytes();
  const auto got = read_fully(*file_, chunk.offset, {reinterpret_cast<char*>(bytes.data()), bytes.size()});
  if (got < bytes.size() || hash64(bytes) != chunk.hash) {
    fail(fmt::format("it is damaged at byte {}", chunk.offset));
  }
  try {
    SchemaCache schemas;
    auto message = read_message(bytes, memory, schemas);
    make_writable(message.content);
    const auto list = unflatten(message.content);
    Items items{.first = ends_[index] - chunk.items, .items = list_in_cursor(list, "items")};
    if (std::ssize(items.items) == chunk.items) return items;
  } catch (const CorruptMessage& error) {
    fail(error.what());
  } catch (const InvalidArgument& error) {
    fail(error.what());
  }
  fail("its table is wrong");
}

}  // namespace levada::pipeline
