//! The wire format of Protobuf: tags, numbers and lengths.
//!
//! All lengths are checked against the bytes that are left, so that no length reserves memory.

/// The kinds of values on the wire that a field may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

/// The number of the wire type that begins a group, an old form of a nested message.
const GROUP: u8 = 3;
/// The number of the wire type that ends a group.
const GROUP_END: u8 = 4;
/// The largest number of groups in each other, which is that of other readers of Protobuf.
const DEEPEST: usize = 100;

/// The problem of bytes that do not follow the wire format.
pub(super) type Damage = &'static str;

const CUT_OFF: Damage = "a value is cut off";

/// A reader of values on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire<'a> {
    rest: &'a [u8],
}

/// The beginning of a field: its number and its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) number: u32,
    pub(super) wire_type: u8,
}

impl Tag {
    /// Returns whether the value has this wire type.
    #[inline]
    pub(super) fn is(self, wire_type: WireType) -> bool {
        self.wire_type == wire_type as u8
    }
}

impl<'a> Wire<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the bytes that were not read.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Reads the beginning of a field.
    #[inline]
    pub(super) fn tag(&mut self) -> Result<Tag, Damage> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).unwrap_or(0);
        if number == 0 || number >= 1 << 29 {
            return Err("a field has a number outside of 1 to 536,870,911");
        }
        Ok(Tag { number, wire_type: (tag & 7) as u8 })
    }

    /// Reads a number of variable length.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Damage> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Damage> {
        let mut number = 0;
        for (at, byte) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if at == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(if self.rest.len() < 10 { CUT_OFF } else { "a number has more than 64 bits" })
    }

    /// Reads a number with a fixed length.
    #[inline]
    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads bytes behind their length.
    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Damage> {
        let length = usize::try_from(self.varint()?).map_err(|_| CUT_OFF)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Passes over the value of a field that no column reads.
    #[inline]
    pub(super) fn skip(&mut self, tag: Tag) -> Result<(), Damage> {
        match tag.wire_type {
            0 => self.varint().map(drop),
            1 => self.fixed::<8>().map(drop),
            2 => self.bytes().map(drop),
            5 => self.fixed::<4>().map(drop),
            GROUP => self.skip_group(tag.number),
            GROUP_END => Err("a group ends that has not begun"),
            _ => Err("a field has an unknown wire type"),
        }
    }

    /// Passes over the rest of a group, with the groups in it.
    fn skip_group(&mut self, number: u32) -> Result<(), Damage> {
        let (mut open, mut depth) = ([0; DEEPEST], 1);
        open[0] = number;
        while depth > 0 {
            let tag = self.tag()?;
            match tag.wire_type {
                GROUP if depth == DEEPEST => return Err("groups are nested too deeply"),
                GROUP => {
                    open[depth] = tag.number;
                    depth += 1;
                }
                GROUP_END if open[depth - 1] != tag.number => {
                    return Err("a group ends that has not begun");
                }
                GROUP_END => depth -= 1,
                _ => self.skip(tag)?,
            }
        }
        Ok(())
    }
}

/// Returns the signed number that a zigzag number stands for.
#[inline]
pub(super) fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_64_bits() {
        let read = |bytes: &[u8]| Wire::new(bytes).varint();
        assert_eq!(read(&[0x96, 1]), Ok(150));
        let all = [0xff; 9];
        assert_eq!(read(&[&all[..], &[1]].concat()), Ok(u64::MAX));
        assert_eq!(read(&[&all[..], &[2]].concat()), Err("a number has more than 64 bits"));
        assert_eq!(read(&[0x80; 11]), Err("a number has more than 64 bits"));
        assert_eq!(read(&[0x80; 9]), Err(CUT_OFF));
        assert_eq!(read(&[]), Err(CUT_OFF));
        assert_eq!([0, 1, 2, u64::MAX].map(zigzag), [0, -1, 1, i64::MIN]);
    }

    #[test]
    fn groups_are_passed_over_as_a_whole() {
        let skip = |bytes: &[u8]| {
            let mut wire = Wire::new(bytes);
            let tag = wire.tag()?;
            wire.skip(tag).map(|()| wire.rest().len())
        };
        // Group 1 with a number, with group 2 in it, and one byte behind.
        assert_eq!(skip(&[0x0b, 0x18, 5, 0x13, 0x14, 0x0c, 7]), Ok(1));
        assert_eq!(skip(&[0x0b, 0x13, 0x0c, 0x14]), Err("a group ends that has not begun"));
        assert_eq!(skip(&[0x0b; 100]), Err(CUT_OFF));
        assert_eq!(skip(&[0x0b; 101]), Err("groups are nested too deeply"));
        assert_eq!(skip(&[0x0c]), Err("a group ends that has not begun"));
        assert_eq!(skip(&[0x0e]), Err("a field has an unknown wire type"));
        assert_eq!(skip(&[0x0a, 5, 1]), Err(CUT_OFF));
        assert_eq!(skip(&[0x02]), Err("a field has a number outside of 1 to 536,870,911"));
    }
}
