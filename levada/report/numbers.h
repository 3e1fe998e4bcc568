// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levada::report {

/// "1,638,400".
std::string with_commas(std::int64_t value);
/// "12.3 M", "4.5 k", "7.0": a count by thousands, for rates.
std::string in_thousands(double value);
/// "1 rank", "4 ranks", "1,024 steps".
std::string counted(std::int64_t count, const std::string& noun);
/// "3 bad lines, at a.jsonl:17, a.jsonl:20, ...". `places`: the first of them.
std::string bad_lines_sentence(std::int64_t count, const std::vector<std::string>& places);
/// "34%", "0.4%".
std::string format_share(double share);
/// "3.2 ms", "0 us", "1.5 s", "2:05 min": seconds for people.
std::string format_seconds(double seconds);

}  // namespace levada::report
