// Reads arbitrary bytes as pipeline items from another process. Accepted items must survive a round trip.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "levada/base/error.h"
#include "levada/pipeline/tree_item_traits.h"

namespace levada::pipeline {
namespace {

// Aborts the process if `holds` is false; the fuzzer reports the input.
void require(bool holds) {
  if (!holds) std::abort();
}

/// Writable copies of a packing's buffers.
class Memory {
 public:
  void add(ByteView bytes) {
    const TensorView view(dtypes::uint8, {static_cast<std::int64_t>(bytes.size())}, bytes.data());
    tensors_.push_back(Tensor::copy_of(view));
    spans_.push_back(tensors_.back().mutable_bytes());
  }
  std::span<const std::span<std::byte>> spans() const { return spans_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::span<std::byte>> spans_;
};

/// Input: three bytes, the number of buffers and the size of each in units of 64 bytes; then the head.
void read(ByteView bytes) {
  const auto memory = std::make_shared<Memory>();
  const auto buffers = static_cast<int>(bytes[0]) % 4;
  const auto size = (static_cast<std::size_t>(bytes[1]) << 8 | static_cast<std::size_t>(bytes[2])) % 256 * 64;
  for (int i = 0; i < buffers; ++i) memory->add(Bytes(size, std::byte{7}));
  const auto head = bytes.subspan(3);
  const TreeItemTraits traits;
  try {
    const auto items = traits.unpack(head, memory->spans(), memory);
    const auto packed = traits.pack(items);
    const auto again = std::make_shared<Memory>();
    for (const auto& buffer : packed.buffers) again->add(buffer);
    const auto back = traits.unpack(packed.head, again->spans(), again);
    require(back.size() == items.size());
    for (std::size_t i = 0; i < items.size(); ++i) require(std::get<Tree>(items[i]) == std::get<Tree>(back[i]));
  } catch (const CorruptMessage& error) {
    require(error.offset() <= head.size());
  }
}

}  // namespace
}  // namespace levada::pipeline

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 3) levada::pipeline::read(std::as_bytes(std::span(data, size)));
  return 0;
}
