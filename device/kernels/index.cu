// The index of a layer of a served version: it finds the row of a key in the device's memory. An
// index is filled once and then only read, so finds and inserts are never in one launch.
//
// A bucket has 24 places: a digest of one byte each, a bit each that says whether the place is
// taken, and the full keys beside it. A place is taken by its bit alone, so every u64 is a legal
// key. A key has two buckets. It goes to the first one unless 20 of its places are taken, and then
// to the emptier one. A bit of the first bucket says that some key went on to the second.
//
// A thread has one key. One atomic operation claims a place, and no thread waits for another.
#include "half.cuh"

const u32 PLACES = 24;
const u32 USUAL_PLACES = 20;
const u32 ALL_PLACES = 0x00ffffffu;
const u32 WENT_ON = 0x80000000u;

struct IndexBucket {
  u32 digests[PLACES / 4];
  u32 mask;
  u32 unused;
};
static_assert(sizeof(IndexBucket) == 32, "a bucket is one sector");

struct LayerIndex {
  IndexBucket* buckets;
  u64* keys;             // PLACES of each bucket
  u32* values;           // the row of each key in the slab, or NO_ROW: the host has what the key reads
  const float* slab;
  u32 bucket_count;
  u32 stride;            // in floats
};

struct IndexInsert {
  LayerIndex index;
  const u64* keys;       // each one once
  const u32* values;
  u32* lost;             // counts the keys that found no place
  Count count;
};

struct IndexFind {
  const LayerIndex* layers;  // the newest first
  const u64* keys;
  u64* rows;             // the address of the row of each key; 0 if the host has to look it up
  u32* misses;           // the keys without a row here, in any order
  u32* miss_count;       // is zero before the launch
  Count count;
  u32 layer_count;
  u32 unused;
};

struct CopyFound {
  const u64* rows;       // of IndexFind
  float* out;
  Count count;
  u32 stride;
  u32 unused;
};

struct PutRows {
  const float* rows;     // one behind the other
  const u32* places;     // the row of the result of each row
  float* out;
  Count count;
  u32 stride;
  u32 unused;
};
static_assert(sizeof(LayerIndex) == 40 && sizeof(IndexInsert) == 80 && sizeof(IndexFind) == 64 &&
              sizeof(CopyFound) == 40 && sizeof(PutRows) == 48, "twins in index.rs");

DEVICE u32 bucket_of(u64 bits, u32 buckets) { return (u32)((bits & 0xffffffffull) * buckets >> 32); }
DEVICE u32 digest_of(u64 key) { return (u32)(mix64(key ^ 0xd1b54a32d192ed03ull) >> 56); }

// Claims a free place of a bucket. Each round sets a bit of `mask`, so there are at most 24.
DEVICE bool claim(IndexBucket& bucket, u32& place) {
  u32 mask = atomicOr(&bucket.mask, 0u);
  while (~mask & ALL_PLACES) {
    const u32 free = (u32)__ffs(~mask & ALL_PLACES) - 1;
    const u32 before = atomicOr(&bucket.mask, 1u << free);
    if (!(before >> free & 1)) {
      place = free;
      return true;
    }
    mask = before | 1u << free;
  }
  return false;
}

KERNEL(index_insert, IndexInsert, 256, 4) {
  const u32 n = count(p.count);
  for (u64 u = thread_index(); u < n; u += thread_count()) {
    const u64 key = read_only(p.keys + u), bits = mix64(key);
    const u32 first = bucket_of(bits, p.index.bucket_count), second = bucket_of(bits >> 32, p.index.bucket_count);
    IndexBucket* const buckets = p.index.buckets;
    const u32 taken = __popc(atomicOr(&buckets[first].mask, 0u) & ALL_PLACES);
    u32 bucket = first, place = 0;
    if (taken >= USUAL_PLACES && (u32)__popc(atomicOr(&buckets[second].mask, 0u) & ALL_PLACES) < taken) bucket = second;
    if (!claim(buckets[bucket], place)) {
      bucket = bucket == first ? second : first;
      if (!claim(buckets[bucket], place)) {
        atomicAdd(p.lost, 1u);
        continue;
      }
    }
    if (bucket != first) atomicOr(&buckets[first].mask, WENT_ON);
    ((unsigned char*)buckets[bucket].digests)[place] = (unsigned char)digest_of(key);
    p.index.keys[(u64)bucket * PLACES + place] = key;
    p.index.values[(u64)bucket * PLACES + place] = read_only(p.values + u);
  }
}

// Finds a key in a bucket. Sets `went_on` if the key may be in its second bucket instead.
DEVICE bool find_in(const LayerIndex& index, u32 bucket, u64 key, u32 pattern, u32& value, bool& went_on) {
  const u32* const words = index.buckets[bucket].digests;
  const u32 mask = read_only(words + PLACES / 4);
  went_on = mask & WENT_ON;
  for (u32 w = 0; w < PLACES / 4; w++) {
    const u32 x = read_only(words + w) ^ pattern;
    // A bit for each byte that is zero, and now and then for another one. The key decides.
    u32 hits = (x - 0x01010101u) & ~x & 0x80808080u;
    while (hits) {
      const u32 place = 4 * w + ((u32)__ffs(hits) - 1) / 8;
      hits &= hits - 1;
      const u64 at = (u64)bucket * PLACES + place;
      if ((mask >> place & 1) && read_only(index.keys + at) == key) {
        value = read_only(index.values + at);
        return true;
      }
    }
  }
  return false;
}

KERNEL(index_find, IndexFind, 256, 4) {
  const u32 n = count(p.count);
  for (u64 u = thread_index(); u < n; u += thread_count()) {
    const u64 key = read_only(p.keys + u), bits = mix64(key);
    const u32 pattern = digest_of(key) * 0x01010101u;
    u64 row = 0;
    for (u32 number = 0; number < p.layer_count; number++) {
      const LayerIndex& index = p.layers[number];
      const u32 first = bucket_of(bits, index.bucket_count);
      u32 value = NO_ROW;
      bool went_on = false, unused = false;
      if (!find_in(index, first, key, pattern, value, went_on) &&
          !(went_on && find_in(index, bucket_of(bits >> 32, index.bucket_count), key, pattern, value, unused)))
        continue;
      if (value != NO_ROW) row = (u64)(index.slab + (u64)value * index.stride);
      break;
    }
    p.rows[u] = row;
    if (!row) p.misses[atomicAdd(p.miss_count, 1u)] = (u32)u;
  }
}

// A thread for four floats of a row; rows whose stride is no multiple of four take one each.
DEVICE void copy_units(float* to, const float* from, u32 unit, bool is_wide) {
  if (is_wide) *(float4*)(to + 4 * unit) = read4(from + 4 * unit);
  else to[unit] = read_only(from + unit);
}

KERNEL(copy_found, CopyFound, 256, 4) {
  const bool is_wide = p.stride % 4 == 0;
  const u32 units = is_wide ? p.stride / 4 : p.stride;
  const u64 all = (u64)count(p.count) * units;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u64 u = i / units;
    const float* const from = (const float*)read_only(p.rows + u);
    if (from) copy_units(p.out + u * p.stride, from, (u32)(i % units), is_wide);
  }
}

KERNEL(put_rows, PutRows, 256, 4) {
  const bool is_wide = p.stride % 4 == 0;
  const u32 units = is_wide ? p.stride / 4 : p.stride;
  const u64 all = (u64)count(p.count) * units;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u64 u = i / units;
    copy_units(p.out + (u64)read_only(p.places + u) * p.stride, p.rows + u * p.stride, (u32)(i % units), is_wide);
  }
}
