// Formats numbers for human readers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levada::report {

/// Returns for example "1,638,400".
std::string with_commas(std::int64_t value);
/// Returns "12.3 M", "4.5 k" or "7.0": a count in thousands, for rates.
std::string in_thousands(double value);
/// Returns "1 rank", "4 ranks" or "1,024 steps".
std::string counted(std::int64_t count, const std::string& noun);
/// Returns "3 bad lines, at a.jsonl:17, a.jsonl:20, ...". `places` are the first of them.
std::string bad_lines_sentence(std::int64_t count, const std::vector<std::string>& places);
/// Returns for example "34%" or "0.4%".
std::string format_share(double share);
/// Returns "3.2 ms", "0 us", "1.5 s" or "2:05 min".
std::string format_seconds(double seconds);

}  // namespace levada::report
