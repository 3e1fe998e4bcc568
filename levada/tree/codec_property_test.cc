// Properties of messages, for arbitrary trees and arbitrarily corrupted bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"
#include "levada/tree/codec.h"
#include "levada/tree/random_tree_testing.h"

namespace levada {
namespace {

// Memory of exactly the message's size, so that a sanitizer sees a read beyond it.
struct Exact {
  std::shared_ptr<std::byte[]> memory;
  std::size_t size;
  explicit Exact(ByteView bytes) : memory(new std::byte[bytes.size()]), size(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), memory.get());
  }
  ByteView view() const { return {memory.get(), size}; }
};

// Reads a message that may be corrupt, and all of its content. Returns whether it was accepted as a message.
bool read_all(ByteView bytes) {
  const Exact exact(bytes);
  SchemaCache cache;
  try {
    const auto message = read_message(exact.view(), exact.memory, cache);
    const auto tree = unflatten(message.content);
    EXPECT_EQ(tree, tree);
    Digest digest;
    for (const auto& leaf : message.content.leaves) {
      if (const auto* tensor = std::get_if<Tensor>(&leaf)) add_to_digest(digest, *tensor);
    }
    return true;
  } catch (const CorruptMessage& error) {
    EXPECT_LE(error.offset(), bytes.size());
    return false;
  }
}

void reseal(Bytes& bytes) {
  const ByteView all = bytes;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::memcpy(&offset, bytes.data() + 16, 8);
  std::memcpy(&size, bytes.data() + 24, 8);
  const auto hash = hash64(all.subspan(offset, size), hash64(all.first(56)));
  std::memcpy(bytes.data() + 56, &hash, 8);
}

TEST(CodecProperty, AnyTreeRoundTripsBitForBit) {
  RandomTrees trees(3);
  for (int i = 0; i < 500; ++i) {
    const auto tree = trees.next();
    const auto flat = flatten(tree);
    const Exact bytes(encode_tree(tree));
    SchemaCache cache;
    const auto message = read_message(bytes.view(), bytes.memory, cache);
    EXPECT_EQ(unflatten(message.content), tree) << tree.to_string();
    EXPECT_EQ(message.content.schema.fingerprint(), flat.schema.fingerprint());
    EXPECT_TRUE(std::ranges::equal(message.content.schema.leaves(), flat.schema.leaves()));
  }
}

TEST(CodecProperty, AnyLeafIsFoundByItsPath) {
  RandomTrees trees(4);
  for (int i = 0; i < 300; ++i) {
    const auto tree = trees.next();
    const auto flat = flatten(tree);
    for (std::size_t leaf = 0; leaf < flat.leaves.size(); ++leaf) {
      const auto& path = flat.schema.leaves()[leaf].path;
      ASSERT_TRUE(tree.contains(path)) << path;
      EXPECT_EQ(tree.at(path), Tree(flat.leaves[leaf])) << path;
    }
  }
}

TEST(CodecProperty, EveryTruncationIsRejected) {
  RandomTrees trees(5);
  for (int i = 0; i < 20; ++i) {
    const auto bytes = encode_tree(trees.next(), as_bytes("envelope"));
    for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 256) {
      EXPECT_FALSE(read_all(ByteView(bytes).first(size))) << size << " of " << bytes.size();
    }
  }
}

TEST(CodecProperty, EveryBitFlipInPrefixAndBodyIsDetected) {
  RandomTrees trees(6);
  const auto bytes = encode_tree(trees.next(), as_bytes("envelope"));
  std::uint64_t body = 0;
  std::memcpy(&body, bytes.data() + 16, 8);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto turned = bytes;
    turned[at] ^= static_cast<std::byte>(1 << trees.below(8));
    EXPECT_EQ(read_all(turned), at >= message_prefix_bytes && at < body) << at;
  }
}

// With the hash recomputed: a message that an attacker could send.
TEST(CodecProperty, AnyChangeToTheBodyYieldsATreeOrAnError) {
  RandomTrees trees(7);
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    auto bytes = encode_tree(trees.next(), as_bytes("envelope"));
    std::uint64_t body = 0;
    std::memcpy(&body, bytes.data() + 16, 8);
    for (auto changes = 1 + trees.below(3); changes > 0; --changes) {
      const auto at = body + trees.below(bytes.size() - body);
      bytes[at] = trees.below(2) ? static_cast<std::byte>(trees.bits()) : bytes[at] ^ std::byte{1};
    }
    // Half of them with a schema whose fingerprint is recomputed, so that the code after that check is reached.
    const auto schema = body + 4 + 8 + 1 + 4;
    std::uint32_t size = 0;
    std::memcpy(&size, bytes.data() + schema - 4, 4);
    if (trees.below(2) && size <= bytes.size() - schema) {
      const auto fingerprint = hash64(ByteView(bytes).subspan(schema, size));
      std::memcpy(bytes.data() + 8, &fingerprint, 8);
    }
    reseal(bytes);
    ++(read_all(bytes) ? taken : refused);
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

TEST(CodecProperty, NoiseIsRejected) {
  RandomTrees trees(8);
  for (int i = 0; i < 1000; ++i) {
    Bytes bytes(trees.below(300));
    for (auto& byte : bytes) byte = static_cast<std::byte>(trees.bits());
    EXPECT_FALSE(read_all(bytes));
  }
}

TEST(CodecProperty, FlatteningDoesNotDependOnThePreviousTree) {
  RandomTrees trees(9);
  FlatTree previous;
  for (int i = 0; i < 300; ++i) {
    const auto tree = trees.next();
    const auto anew = flatten(tree);
    EXPECT_EQ(flatten(tree, previous.schema).schema.fingerprint(), anew.schema.fingerprint());
    EXPECT_EQ(flatten(tree, anew.schema).schema.leaves().data(), anew.schema.leaves().data());
    previous = anew;
  }
}

}  // namespace
}  // namespace levada
