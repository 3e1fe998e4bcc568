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

TEST(Urls, AreShownWithoutAPasswordThatShouldHaveBeenEscaped) {
  for (const std::string word : {"wo/rd", "wo?rd", "wo#rd", "wo'rd", "wo rd", "w@ord", "wo://rd"}) {
    EXPECT_EQ(shown_url("http://user:" + word + "@host/a.jsonl"), "http://host/a.jsonl") << word;
  }
}

TEST(Urls, KeepWhatIsNoSecret) {
  for (const std::string url :
       {"s3://bucket/part-?.jsonl", "s3://bucket/a@b.jsonl", "memory://*/a.json?", "http://[::1]:80/a",
        "file:///a b/c.jsonl", "a?b=c@d", "http://host:8080/x@y", "://", "a://"}) {
    EXPECT_EQ(shown_url(url), url);
  }
}

TEST(Urls, LoseTheirSecretsAlsoWithinASentence) {
  EXPECT_EQ(printable("403, url='http://user:word@host/x?sig=word', and https://word@host/y?word: no\x1b"),
            "403, url='http://host/x', and https://host/y: no\\x1b");
  EXPECT_EQ(printable_lines("http://a:word@b\nhttp://c:word@d"), "http://b\nhttp://d");
}

TEST(Urls, HaveANameThatTheQueryOfAWebAddressIsNoPartOf) {
  EXPECT_EQ(without_query("https://h/a.jsonl?X-Amz-Signature=b%2F&e=1"), "https://h/a.jsonl");
  EXPECT_EQ(without_query("http://h/a.bin#part"), "http://h/a.bin");
  EXPECT_EQ(without_query("https://h/a.jsonl"), "https://h/a.jsonl");
  EXPECT_EQ(without_query("s3://bucket/a?.jsonl"), "s3://bucket/a?.jsonl");
  EXPECT_EQ(without_query("what?.jsonl"), "what?.jsonl");
}

}  // namespace
}  // namespace levada
