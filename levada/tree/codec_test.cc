#include "levada/tree/codec.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

Tree sample() {
  const auto shared = Tensor::of<float>({2}, {1, 2});
  return Tree::dict({
      {"tokens", Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4})},
      {"mask", shared},
      {"same", shared},
      {"meta", Tree::list({7, "seven", None{}, true, 1.5, Bytes{std::byte{1}}})},
  });
}

Message read(const Bytes& bytes, SchemaCache& cache) {
  auto owner = std::make_shared<Bytes>(bytes);
  return read_message(*owner, owner, cache);
}

TEST(Codec, GivesBackWhatWasEncoded) {
  SchemaCache cache;
  const auto envelope = as_bytes("step 7");
  const auto message = read(encode_tree(sample(), envelope), cache);
  EXPECT_EQ(as_text(message.envelope), "step 7");
  EXPECT_TRUE(message.had_schema);
  const auto tree = unflatten(message.content);
  EXPECT_EQ(tree, sample());
  EXPECT_EQ(tree.tensor("mask").view().data(), tree.tensor("same").view().data());
  EXPECT_FALSE(tree.tensor("mask").is_writable());
}

}  // namespace
}  // namespace levada
