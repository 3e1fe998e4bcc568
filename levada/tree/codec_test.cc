#include "levada/tree/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

// The offsets of the fields in a message's prefix.
constexpr std::size_t at_version = 4;
constexpr std::size_t at_fingerprint = 8;
constexpr std::size_t at_body_offset = 16;
constexpr std::size_t at_body_bytes = 24;
constexpr std::size_t at_message_bytes = 32;
constexpr std::size_t at_hash = 56;

template <typename T>
T get(const Bytes& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T>
void set(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// Recomputes the hash after a change.
void seal(Bytes& bytes) {
  const ByteView all = bytes;
  const auto body = all.subspan(get<std::uint64_t>(bytes, at_body_offset), get<std::uint64_t>(bytes, at_body_bytes));
  set(bytes, at_hash, hash64(body, hash64(all.first(at_hash))));
}

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

void expect_corrupt(const Bytes& bytes, const std::string& what) {
  SchemaCache cache;
  try {
    read(bytes, cache);
    FAIL() << "no error about " << what;
  } catch (const CorruptMessage& error) {
    EXPECT_THAT(error.what(), HasSubstr(what));
    EXPECT_LE(error.offset(), bytes.size());
  }
}

// A message of one int64 [2, 2], whose body ends with its extents and offset.
Bytes one_tensor() {
  return encode_tree(Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4}));
}
void set_placed(Bytes& bytes, std::int64_t rows, std::int64_t columns, std::uint64_t offset) {
  set(bytes, bytes.size() - 24, rows);
  set(bytes, bytes.size() - 16, columns);
  set(bytes, bytes.size() - 8, offset);
  seal(bytes);
}

TEST(Codec, RoundTrips) {
  SchemaCache cache;
  const auto message = read(encode_tree(sample(), as_bytes("step 7")), cache);
  EXPECT_EQ(as_text(message.envelope), "step 7");
  EXPECT_TRUE(message.had_schema);
  EXPECT_EQ(unflatten(message.content), sample());
}

TEST(Codec, SendsAliasedTensorsOnce) {
  SchemaCache cache;
  const auto tree = unflatten(read(encode_tree(sample()), cache).content);
  EXPECT_EQ(tree.tensor("mask").view().data(), tree.tensor("same").view().data());
}

TEST(Codec, DecodedTensorsKeepTheMessageAliveAndAreReadOnly) {
  SchemaCache cache;
  auto owner = std::make_shared<Bytes>(encode_tree(sample()));
  auto message = read_message(*owner, owner, cache);
  auto tokens = std::get<Tensor>(message.content.leaves[0]);
  const std::weak_ptr<Bytes> memory = owner;
  EXPECT_GE(tokens.bytes().data(), owner->data());
  EXPECT_EQ((tokens.bytes().data() - owner->data()) % static_cast<std::ptrdiff_t>(leaf_alignment), 0);
  EXPECT_FALSE(tokens.is_writable());
  owner = nullptr;
  message = {};
  EXPECT_EQ(tokens.as<std::int64_t>()[3], 4);
  tokens = {};
  EXPECT_TRUE(memory.expired());
}

TEST(Codec, CopiesEachElementOnce) {
  const auto tree = sample();
  const auto before = copied_bytes();
  const auto message = encode_tree(tree);
  EXPECT_EQ(copied_bytes() - before, 4 * 8 + 2 * 4);
  SchemaCache cache;
  auto owner = std::make_shared<Bytes>(message);
  unflatten(read_message(*owner, owner, cache).content);
  EXPECT_EQ(copied_bytes() - before, 4 * 8 + 2 * 4);
}

TEST(Codec, SendsTheSchemaOnlyOnce) {
  const auto flat = flatten(Tree::dict({{"n", 1}, {"text", "a"}}));
  const std::vector<PlacedTensor> placed(2);
  SchemaCache cache;
  Bytes memory(1024);
  const auto send = [&](bool with_schema) {
    const auto bytes = write_message(memory, 64, {}, flat.schema, with_schema, flat.leaves, placed);
    return Bytes(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(bytes));
  };
  expect_corrupt(send(false), "has not been received");
  EXPECT_TRUE(read(send(true), cache).had_schema);
  const auto message = read(send(false), cache);
  EXPECT_FALSE(message.had_schema);
  EXPECT_EQ(unflatten(message.content), unflatten(flat));
}

TEST(Codec, AcceptsLeavesOnEitherSideOfTheBody) {
  const auto flat = flatten(Tree::list({Tensor::of<std::int32_t>({2}, {1, 2}), Tensor::of<std::int32_t>({1}, {3})}));
  Bytes memory(1024);
  const std::vector<PlacedTensor> placed = {{{2}, 640}, {{1}, 64}};
  set<std::int32_t>(memory, 640, 1);
  set<std::int32_t>(memory, 644, 2);
  set<std::int32_t>(memory, 64, 3);
  const auto bytes = write_message(memory, 128, {}, flat.schema, true, flat.leaves, placed);
  EXPECT_EQ(bytes, 648U);
  memory.resize(bytes);
  SchemaCache cache;
  EXPECT_EQ(unflatten(read(memory, cache).content), unflatten(flat));
}

TEST(WriteMessage, RejectsLeavesAndPlacesThatDoNotFit) {
  const auto flat = flatten(Tree::list({Tensor::of<std::int32_t>({2}, {1, 2}), "text"}));
  const auto refused = [&flat](std::size_t memory, std::size_t body, const PlacedTensor& tensor,
                               const std::vector<Leaf>& leaves) {
    Bytes to(memory);
    const std::vector<PlacedTensor> placed = {tensor, {}};
    EXPECT_THROW(write_message(to, body, {}, flat.schema, true, leaves, placed), InvalidArgument);
  };
  const auto& leaves = flat.leaves;
  const std::size_t needed = 128 + body_bytes(flat.schema, leaves, 0, true);
  Bytes to(needed);
  const std::vector<PlacedTensor> placed = {{{2}, 64}, {}};
  EXPECT_EQ(write_message(to, 128, {}, flat.schema, true, leaves, placed), needed);

  refused(needed - 1, 128, {{2}, 64}, leaves);
  refused(needed, 32, {{2}, 64}, leaves);
  refused(needed, std::size_t(0) - 8, {{2}, 64}, leaves);
  refused(needed, 128, {{2}, 128}, leaves);                      // over the body
  refused(needed, 128, {{2}, 65}, leaves);                       // not aligned
  refused(needed, 128, {{2}, 0}, leaves);                        // over the prefix
  refused(needed, 128, {{2}, 1 << 20}, leaves);                  // beyond the memory
  refused(needed, 128, {{2}, ~std::uint64_t{63}}, leaves);       // overflows
  refused(needed, 128, {{2, 1}, 64}, leaves);                    // another rank
  refused(needed, 128, {{-2}, 64}, leaves);                      // no shape
  refused(needed, 128, {{2}, 64}, {leaves[0], std::int64_t{}});  // another kind
  refused(needed, 128, {{2}, 64}, {leaves[0]});                  // too few
  EXPECT_THROW(write_message(to, 128, {}, flat.schema, true, leaves, {}), InvalidArgument);
}

TEST(ReadMessage, RejectsAFalsePrefix) {
  const auto good = one_tensor();
  const auto with = [&good](std::size_t at, auto value, const std::string& what) {
    auto bytes = good;
    set(bytes, at, value);
    expect_corrupt(bytes, what);
  };
  with(0, std::uint32_t{1}, "this is no message");
  with(at_version, std::uint32_t{2}, "a message of version 2");
  with(at_message_bytes, std::uint64_t{good.size() + 1}, "bytes instead of");
  with(at_body_offset, std::uint64_t{0}, "a body of");
  with(at_body_offset, std::uint64_t{good.size() + 1}, "a body of");
  with(at_body_offset, ~std::uint64_t{0}, "a body of");
  with(at_body_bytes, ~std::uint64_t{0}, "a body of");
  with(at_body_bytes, std::uint64_t{0}, "its hash");
  with(at_fingerprint, std::uint64_t{0}, "its hash");
  with(at_hash, std::uint64_t{0}, "its hash");
}

TEST(ReadMessage, RejectsBytesAfterAMessage) {
  auto bytes = one_tensor();
  bytes.push_back({});
  expect_corrupt(bytes, "bytes instead of");
}

TEST(ReadMessage, RejectsLeavesAtInvalidOffsets) {
  const auto placed = [](std::int64_t rows, std::int64_t columns, std::uint64_t offset, const std::string& what) {
    auto bytes = one_tensor();
    set_placed(bytes, rows, columns, offset);
    expect_corrupt(bytes, what);
  };
  constexpr auto huge = std::int64_t{1} << 62;
  placed(2, 2, 0, "cannot lie at byte 0");
  placed(2, 2, 72, "cannot lie at byte 72");
  placed(2, 2, 1 << 20, "cannot lie at byte");
  placed(2, 2, ~std::uint64_t{63}, "cannot lie at byte");
  placed(0, 2, 1 << 20, "cannot lie at byte");
  placed(100, 2, 64, "cannot lie at byte 64");
  placed(-1, 2, 64, "impossible shape");
  placed(-1, -1, 64, "impossible shape");
  placed(huge, 1, 64, "impossible shape");
  placed(huge, 4, 64, "impossible shape");
  placed(0, -1, 64, "impossible shape");
}

TEST(ReadMessage, AcceptsAnEmptyLeafAtTheEnd) {
  auto bytes = one_tensor();
  while (bytes.size() % leaf_alignment != 0) bytes.push_back({});
  set(bytes, at_message_bytes, std::uint64_t{bytes.size()});
  const auto body_end = get<std::uint64_t>(bytes, at_body_offset) + get<std::uint64_t>(bytes, at_body_bytes);
  set(bytes, body_end - 24, std::int64_t{0});
  set(bytes, body_end - 8, std::uint64_t{bytes.size()});
  seal(bytes);
  SchemaCache cache;
  EXPECT_EQ(std::get<Tensor>(read(bytes, cache).content.leaves[0]).shape(), (Shape{0, 2}));
}

TEST(ReadMessage, RejectsASchemaWithAnotherFingerprint) {
  auto bytes = one_tensor();
  set(bytes, at_fingerprint, std::uint64_t{1});
  seal(bytes);
  expect_corrupt(bytes, "whose fingerprint is not the message's");
}

TEST(ReadMessage, NamesThePlaceOfAnErrorInASchema) {
  auto bytes = one_tensor();
  const auto body = get<std::uint64_t>(bytes, at_body_offset);
  const auto at = body + 4 + 1 + 4;
  const auto size = get<std::uint32_t>(bytes, at - 4);
  set(bytes, at + 1, std::uint8_t{99});
  set(bytes, at_fingerprint, hash64(ByteView(bytes).subspan(at, size)));
  seal(bytes);
  expect_corrupt(bytes, "a node of unknown kind 99");
}

TEST(ReadMessage, RejectsBoolsOtherThan0And1) {
  auto bytes = encode_tree(true);
  set(bytes, bytes.size() - 1, std::uint8_t{2});
  seal(bytes);
  expect_corrupt(bytes, "a bool of 2 instead of 0 or 1");
}

TEST(ReadMessage, RejectsTextLongerThanItsMessage) {
  auto bytes = encode_tree("text");
  set(bytes, bytes.size() - 8, std::uint32_t{5});
  seal(bytes);
  expect_corrupt(bytes, "5 bytes expected, 4 left");
}

TEST(ReadMessage, RejectsABodyLongerThanItsLeaves) {
  auto bytes = encode_tree("text");
  set(bytes, bytes.size() - 8, std::uint32_t{3});
  seal(bytes);
  expect_corrupt(bytes, "1 bytes too many");
}

TEST(ReadMessage, DoesNotCacheTheSchemaOfACorruptMessage) {
  auto bytes = one_tensor();
  const auto fingerprint = get<std::uint64_t>(bytes, at_fingerprint);
  set_placed(bytes, -1, 2, 64);
  SchemaCache cache;
  EXPECT_THROW(read(bytes, cache), CorruptMessage);
  EXPECT_FALSE(cache.find(fingerprint));
}

TEST(SchemaCache, EvictsTheOldestOfMoreThan64) {
  SchemaCache cache;
  std::vector<Schema> schemas;
  for (int i = 0; i < 65; ++i)
    schemas.push_back(flatten(Tree::list(std::vector<Tree>(static_cast<std::size_t>(i)))).schema);
  for (int i = 0; i < 64; ++i) cache.add(schemas[static_cast<std::size_t>(i)]);
  cache.add(schemas[0]);
  EXPECT_TRUE(cache.find(schemas[0].fingerprint()));
  cache.add(schemas[64]);
  EXPECT_FALSE(cache.find(schemas[0].fingerprint()));
  EXPECT_TRUE(cache.find(schemas[1].fingerprint()));
  EXPECT_TRUE(cache.find(schemas[64].fingerprint()));
}

TEST(AddToDigest, DependsOnNameShapeAndBytes) {
  const auto tensor = Tensor::of<std::int16_t>({2, 2}, {1, 2, 3, 4});
  Digest digest;
  add_to_digest(digest, tensor);
  Digest by_hand;
  by_hand.update("int16:[2, 2]:");
  by_hand.update(tensor.bytes());
  EXPECT_EQ(digest.hex(), by_hand.hex());
}

TEST(AddToDigest, DoesNotDependOnStrides) {
  const auto tensor = Tensor::of<std::int16_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  const TensorView transposed(dtypes::int16, {3, 2}, {1, 3}, tensor.bytes().data());
  Digest a;
  Digest b;
  add_to_digest(a, transposed);
  add_to_digest(b, Tensor::copy_of(transposed));
  EXPECT_EQ(a.hex(), b.hex());
}

}  // namespace
}  // namespace levada
