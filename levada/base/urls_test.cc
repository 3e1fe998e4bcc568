#include "levada/base/urls.h"

#include <gtest/gtest.h>

#include "levada/base/text.h"

namespace levada {
namespace {

TEST(Urls, AreShownWithoutUserPasswordAndQuery) {
  EXPECT_EQ(shown_url("http://user:word@host:80/a.jsonl"), "http://host:80/a.jsonl");
  EXPECT_EQ(shown_url("https://token@host/a.jsonl?X-Amz-Signature=word#there"), "https://host/a.jsonl");
  EXPECT_EQ(shown_url("https://host/a.jsonl?word"), "https://host/a.jsonl");
  EXPECT_EQ(shown_url("abfs://host/a.jsonl?sig=word"), "abfs://host/a.jsonl");
  EXPECT_EQ(shown_url("simplecache::http://user:word@host/a"), "simplecache::http://host/a");
  EXPECT_EQ(shown_url("ftp://user:word@host"), "ftp://host");
}

TEST(Urls, AreShownWithoutAnUnescapedPassword) {
  for (const std::string word : {"wo/rd", "wo?rd", "wo#rd", "wo'rd", "wo rd", "w@ord", "wo://rd"}) {
    EXPECT_EQ(shown_url("http://user:" + word + "@host/a.jsonl"), "http://host/a.jsonl") << word;
  }
}

TEST(Urls, AreShownWithoutAPasswordThatBeginsLikeAPort) {
  for (const std::string word : {"12/wo", "/wo", "123456/wo", "12wo/rd"}) {
    EXPECT_EQ(shown_url("s3://user:" + word + "@bucket/a.jsonl"), "s3://bucket/a.jsonl") << word;
  }
  EXPECT_EQ(shown_url("http://user:123456/wo@host/a.jsonl"), "http://host/a.jsonl");
  EXPECT_EQ(shown_url("http://user:/wo@host/a.jsonl"), "http://host/a.jsonl");
}

TEST(Urls, AreShownInTimeThatIsLinearInTheText) {
  // Each takes minutes if the time is quadratic.
  for (const std::string part : {"?", "a://", "a://b:c ", "?a=1 ", "://?", "?a=1 &b ", "http://", "a:b ", "@", "\n"}) {
    std::string text = "http://h/";
    while (text.size() < std::size_t{4} << 20) text += part;
    EXPECT_LE(shown_url(text).size(), text.size()) << part;
  }
}

TEST(Urls, KeepPartsThatAreNotSecret) {
  for (const std::string url :
       {"s3://bucket/part-?.jsonl", "s3://bucket/a@b.jsonl", "memory://*/a.json?", "http://[::1]:80/a",
        "file:///a b/c.jsonl", "a?b=c@d", "http://host:8080/x@y", "://", "a://"}) {
    EXPECT_EQ(shown_url(url), url);
  }
}

TEST(Urls, LoseTheirSecretsWithinASentence) {
  EXPECT_EQ(printable("403, url='http://user:word@host/x?sig=word', and https://word@host/y?word: no\x1b"),
            "403, url='http://host/x', and https://host/y: no\\x1b");
  EXPECT_EQ(printable_lines("http://a:word@b\nhttp://c:word@d"), "http://b\nhttp://d");
}

TEST(Urls, LoseQueriesAfterUnescapedCharacters) {
  for (const std::string name : {"my data", "it's", "a\tb", "a\"b", "<a>", "a) b", "a?b c"}) {
    EXPECT_EQ(shown_url("http://h/" + name + ".jsonl?k=a'b&sig=word").find("word"), std::string::npos) << name;
    EXPECT_EQ(shown_url("s3://h/" + name + ".jsonl?sig=word").find("word"), std::string::npos) << name;
  }
  EXPECT_EQ(shown_url("http://h/my data.jsonl?sig=word: line 3 is not JSON"),
            "http://h/my data.jsonl: line 3 is not JSON");
  EXPECT_EQ(shown_url("http://h/x.jsonl?k=a b&sig=word and more"), "http://h/x.jsonl and more");
  EXPECT_EQ(shown_url("http://h/x?k=a'b&sig=word, http://h/y z?sig=word"), "http://h/x, http://h/y z");
  EXPECT_EQ(shown_url("HTTP://h/x?word"), "HTTP://h/x");
  EXPECT_EQ(shown_url("http://h/x?url=http://user@h/y?sig=word"), "http://h/x");
}

TEST(Urls, NameExcludesTheQueryOfAWebAddress) {
  EXPECT_EQ(without_query("https://h/a.jsonl?X-Amz-Signature=b%2F&e=1"), "https://h/a.jsonl");
  EXPECT_EQ(without_query("Http://h/a.bin#part"), "Http://h/a.bin");
  EXPECT_EQ(without_query("https://h/a.jsonl"), "https://h/a.jsonl");
  EXPECT_EQ(without_query("s3://bucket/a?.jsonl"), "s3://bucket/a?.jsonl");
  EXPECT_EQ(without_query("what?.jsonl"), "what?.jsonl");
}

}  // namespace
}  // namespace levada
