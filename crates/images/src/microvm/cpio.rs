//! The archive a kernel takes its first files from: the "new ASCII" format of cpio. Owner, times and inode numbers are
//! fixed, so that the content alone decides the bytes.

use std::fmt::Write;

const ALIGN: usize = 4;
/// What tools pad the whole to.
const BLOCK: usize = 512;

#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
    entries: u32,
}

impl Writer {
    pub fn dir(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[], (0, 0));
    }

    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, 0o100_000 | mode, content, (0, 0));
    }

    pub fn char_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, 0o020_600, &[], (major, minor));
    }

    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.pad(BLOCK);
        self.out
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let mut header = String::from("070701");
        // Inode, mode, owner, group, links, time, size, device of the file system, device, name length, checksum.
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        for field in fields {
            // Writing to a string does not fail.
            let _ = write!(header, "{field:08x}");
        }
        self.out.extend_from_slice(header.as_bytes());
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(0);
        self.pad(ALIGN);
        self.out.extend_from_slice(content);
        self.pad(ALIGN);
    }

    fn pad(&mut self, to: usize) {
        let whole = self.out.len().next_multiple_of(to);
        self.out.resize(whole, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_byte_by_byte() {
        let mut writer = Writer::default();
        writer.file("a", 0o555, b"hello");
        let out = writer.finish();
        let text = String::from_utf8(out.clone()).unwrap();
        let header = "070701000000010000816d000000000000000000000001000000000000000500000000000000000000000000000000\
                      0000000200000000";
        assert_eq!(&text[..110], header);
        assert_eq!(&text[110..112], "a\0");
        assert_eq!(&text[112..120], "hello\0\0\0");
        assert!(text[120..].starts_with("070701"));
        assert_eq!(out.len(), 512);
    }
}
