#include "levada/exchange/id_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "levada/base/hash.h"

namespace levada {
namespace {

TEST(IdTable, FindsExactlyTheInsertedIds) {
  std::mt19937_64 random(7);
  IdTable table;
  std::map<std::string, bool> is_here;
  for (int step = 0; step < 20'000; ++step) {
    const std::string id = "id-" + std::to_string(random() % 500) + std::string(random() % 2 * 300, 'x');
    const std::uint64_t hash = hash64(as_bytes(id)) % 64;  // many collisions
    const auto found = table.find(id, hash);
    EXPECT_EQ(found.has_value(), is_here[id]);
    if (random() % 2 == 0) {
      const auto either = table.find_or_insert(id, hash);
      EXPECT_EQ(either.is_new, !found);
      EXPECT_EQ(either.number, found.value_or(table.size() - 1));
      EXPECT_EQ(table[either.number], id);
      is_here[id] = true;
      continue;
    }
    if (found) {
      EXPECT_EQ(table[*found], id);
      table.erase(*found);
    } else {
      const std::size_t next = table.size();
      EXPECT_EQ(table.insert(id, hash), next);
    }
    is_here[id] = !found;
    if (step % 1000 == 0) table.compact();
  }
  EXPECT_EQ(table.size(), static_cast<std::size_t>(std::ranges::count_if(is_here, [](auto& e) { return e.second; })));
}

TEST(IdTable, FindsManyIdsLikeSingleOnes) {
  IdTable table;
  std::vector<std::string> ids;
  for (int i = 0; i < 3000; ++i) {
    ids.push_back("id-" + std::to_string(i * 7919 % 3000));
    if (i % 3 != 0) table.find_or_insert(ids.back(), hash64(as_bytes(ids.back())));
  }
  for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 24u, 25u, 33u, 3000u}) {
    const auto asked = std::span(ids).first(count);
    std::vector<std::uint32_t> numbers{5}, unknown;
    table.find_all(asked, numbers);
    IdTable().find_all(asked, unknown);
    EXPECT_EQ(unknown, std::vector(count, IdTable::none));
    ASSERT_EQ(numbers.size(), 1 + count);
    EXPECT_EQ(numbers[0], 5u);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(numbers[1 + i], table.find(asked[i], hash64(as_bytes(asked[i]))).value_or(IdTable::none)) << asked[i];
    }
  }
}

TEST(IdPrefix, HasTheOrderOfTheIds) {
  std::vector<std::string> ids{"run-7-a", "run-7-", "run-7-abcdefghij", "run-7-abcdefghik", "run-7-b", "run-7-\xff"};
  std::ranges::sort(ids);
  IdPrefix prefix;
  for (const std::string& id : ids) prefix.see(id);
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_LE(prefix.of(ids[i - 1]), prefix.of(ids[i]));
  EXPECT_LT(prefix.of("run-7-a"), prefix.of("run-7-b"));
}

}  // namespace
}  // namespace levada
