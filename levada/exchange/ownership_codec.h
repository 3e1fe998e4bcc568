// Parts of an ownership as bytes, little-endian; readers throw CorruptMessage. For this module's sources alone.
#pragma once

#include "levada/base/bytes.h"
#include "levada/exchange/ownership.h"

namespace levada {

void put_key(ByteWriter& writer, const SampleKey& key);
SampleKey get_key(ByteReader& reader);
/// Tokens of a key that fit in memory.
std::int64_t most_tokens(const SampleKey& key);

void put_part(ByteWriter& writer, const SequencePart& part);
SequencePart get_part(ByteReader& reader);

void put_values(ByteWriter& writer, const PlainValues& values);
PlainValues get_values(ByteReader& reader);

}  // namespace levada
