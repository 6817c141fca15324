//! Copies between here and a sandbox: files whole or not at all, folders as archives, modes kept.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use runtime_api::client::{ClientError, MAX_WHOLE_FILE, Record, path};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{Context, Outcome};
use crate::args::files::CpArgs;
use crate::failure::Failure;
use crate::scan::UsageError;

const PIECE: usize = 256 * 1024;
/// A copy that comes short is made again this often.
const AGAIN: u32 = 2;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    There { sandbox: String, path: String },
}

/// A path here may hold a colon if it begins as a path does.
fn side(text: &str) -> Side {
    match text.split_once(':') {
        Some((sandbox, path)) if path.starts_with('/') && !sandbox.is_empty() && !sandbox.contains('/') => {
            Side::There { sandbox: sandbox.to_owned(), path: path.to_owned() }
        }
        _ => Side::Here(PathBuf::from(text)),
    }
}

/// Refused before anything is sent.
pub(super) fn check(args: &CpArgs) -> Result<(), UsageError> {
    match (side(&args.from), side(&args.to)) {
        (Side::Here(_), Side::There { .. }) | (Side::There { .. }, Side::Here(_)) => Ok(()),
        _ => Err(UsageError::new("exactly one side of a copy is in a sandbox")
            .hint("Write it as SANDBOX:/absolute/path; the other side is a path here.")),
    }
}

pub(super) async fn cp(context: &Context, args: CpArgs) -> Outcome {
    let to = match (side(&args.from), side(&args.to)) {
        (Side::Here(from), Side::There { sandbox, path }) => {
            let id = context.client.resolve(&sandbox).await?;
            up(context, &id, &from, &path, args.recursive).await?
        }
        (Side::There { sandbox, path }, Side::Here(to)) => {
            let id = context.client.resolve(&sandbox).await?;
            down(context, &id, &path, &to, args.recursive).await?.display().to_string()
        }
        _ => {
            check(&args)?;
            return Ok(1);
        }
    };
    if context.printer.json {
        context.printer.value(&json!({ "from": args.from, "to": to }))?;
    }
    Ok(0)
}

fn needs_recursive(what: &str) -> Failure {
    UsageError::new(format!("{what} is a directory")).hint("Copy it with -r.").into()
}

async fn up(context: &Context, id: &str, from: &Path, to: &str, recursive: bool) -> Result<String, Failure> {
    let meta = std::fs::metadata(from).with_context(|| format!("cannot read {}", from.display()))?;
    if meta.is_dir() && !recursive {
        return Err(needs_recursive(&from.display().to_string()));
    }
    // `dir/` and a directory that is there mean a place inside.
    let inside = to.ends_with('/') || (!meta.is_dir() && is_dir_there(context, id, to).await?);
    let to = if inside {
        let name = from.canonicalize().ok().and_then(|full| full.file_name().map(|name| name.to_owned()));
        let name = name.and_then(|name| name.into_string().ok()).context("the source has no name of its own")?;
        format!("{}/{name}", to.trim_end_matches('/'))
    } else {
        to.to_owned()
    };
    if meta.is_dir() {
        dir_up(context, id, from, &to).await?
    } else {
        file_up(context, id, from, &to).await?
    }
    Ok(to)
}

async fn stat_there(context: &Context, id: &str, path_there: &str) -> Result<Record, Failure> {
    let route = path(&["v1", "sandboxes", id, "files", "stat"]);
    Ok(context.client.get(route).query("path", path_there).send().await?)
}

async fn is_dir_there(context: &Context, id: &str, path_there: &str) -> Result<bool, Failure> {
    Ok(stat_there(context, id, path_there).await?.text("type") == Some("directory"))
}

async fn file_up(context: &Context, id: &str, from: &Path, to: &str) -> Result<(), Failure> {
    let shown = from.display().to_string();
    let file = File::open(from).with_context(|| format!("cannot open {shown}"))?;
    let meta = file.metadata().with_context(|| format!("cannot look at {shown}"))?;
    if !meta.is_file() {
        return Err(UsageError::new(format!("{shown} is neither a file nor a directory")).into());
    }
    let mode = format!("{:03o}", meta.mode() & 0o777);
    if meta.len() <= MAX_WHOLE_FILE as u64 {
        let mut bytes = Vec::new();
        file.take(MAX_WHOLE_FILE as u64 + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {shown}"))?;
        context.client.write_file(id, to, bytes.into(), Some(&mode)).await?;
        return Ok(());
    }
    let size = meta.len();
    let file = Arc::new(file);
    let digest = {
        let file = file.clone();
        tokio::task::spawn_blocking(move || digest(&file, size)).await.context("the reader failed")?
    };
    let digest = digest.with_context(|| format!("cannot read {shown}"))?;
    let read = |offset, length| {
        let (file, shown) = (file.clone(), shown.clone());
        async move {
            let read = move || {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
            };
            match tokio::task::spawn_blocking(read).await {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(error)) => Err(ClientError::local("cli_error", format!("cannot read {shown}: {error}"))),
                Err(error) => Err(ClientError::local("cli_error", format!("cannot read {shown}: {error}"))),
            }
        }
    };
    Ok(context.client.upload_file(id, to, size, &digest, &mode, read).await?)
}

fn digest(file: &File, size: u64) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    let mut offset = 0;
    while offset < size {
        let wanted = PIECE.min(usize::try_from(size - offset).unwrap_or(PIECE));
        file.read_exact_at(&mut buf[..wanted], offset)?;
        hash.update(&buf[..wanted]);
        offset += wanted as u64;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn dir_up(context: &Context, id: &str, from: &Path, to: &str) -> Result<(), Failure> {
    let mut upload = context.client.upload_archive(id, to).await?;
    let (pieces, mut packed) = mpsc::channel(4);
    let (root, step) = (from.to_owned(), upload.step);
    let worker = tokio::task::spawn_blocking(move || pack(&root, Pieces { pieces, current: Vec::new(), step }));
    let mut sent = Ok(());
    while let Some(piece) = packed.recv().await {
        sent = upload.part(piece).await;
        if sent.is_err() {
            break;
        }
    }
    // With nobody to take what it packs, it ends.
    drop(packed);
    let packed = worker.await.context("the packer failed")?;
    let result = match (sent, packed) {
        (Err(error), _) => Err(error.into()),
        (Ok(()), Err(error)) => {
            Err(anyhow::Error::new(error).context(format!("cannot pack {}", from.display())).into())
        }
        (Ok(()), Ok(())) => return Ok(upload.commit().await?),
    };
    upload.abort().await;
    result
}

fn pack(root: &Path, out: Pieces) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::fast()));
    archive.follow_symlinks(false);
    archive.append_dir_all(".", root)?;
    archive.into_inner()?.finish()?.send()
}

/// A writer whose pieces fit a part each.
struct Pieces {
    pieces: mpsc::Sender<Bytes>,
    current: Vec<u8>,
    step: usize,
}

impl Pieces {
    fn send(&mut self) -> std::io::Result<()> {
        let piece = std::mem::take(&mut self.current);
        if piece.is_empty() {
            return Ok(());
        }
        self.pieces.blocking_send(piece.into()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Pieces {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let taken = data.len().min(self.step - self.current.len());
        self.current.extend_from_slice(&data[..taken]);
        if self.current.len() == self.step {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn down(context: &Context, id: &str, from: &str, to: &Path, recursive: bool) -> Result<PathBuf, Failure> {
    let stat = stat_there(context, id, from).await?;
    if stat.flag("exists") == Some(false) {
        let message = format!("{from} does not exist in the sandbox");
        return Err(ClientError::local("file_not_found", message).into());
    }
    // A link may lead to either; whoever says -r means a directory.
    let is_dir = match stat.text("type") {
        Some("directory") => true,
        Some("symlink") => recursive,
        _ => false,
    };
    if is_dir && !recursive {
        return Err(needs_recursive(from));
    }
    let inside = to.as_os_str().as_encoded_bytes().ends_with(b"/") || to.is_dir();
    let to = match Path::new(from).file_name().filter(|_| inside) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let mut tries = 0;
    loop {
        let copied =
            if is_dir { dir_down(context, id, from, &to).await } else { file_down(context, id, from, &to).await };
        match copied {
            Err(Failure::Api(error)) if error.code == "download_incomplete" && tries < AGAIN => tries += 1,
            Err(failure) => return Err(failure),
            Ok(()) => break,
        }
    }
    if !is_dir {
        let mode = stat.text("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
        if let Some(mode) = mode.filter(|_| stat.text("type") == Some("file")) {
            let permissions = std::fs::Permissions::from_mode(mode & 0o777);
            std::fs::set_permissions(&to, permissions)
                .with_context(|| format!("cannot set the mode of {}", to.display()))?;
        }
    }
    Ok(to)
}

/// A file beside the target, which goes again unless it takes the target's name.
struct Partial {
    path: PathBuf,
    kept: bool,
}

impl Partial {
    fn beside(target: &Path) -> Result<(Self, File), Failure> {
        let name = target.file_name().context("the target has no name of its own")?;
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(partial);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((Self { path, kept: false }, file))
    }

    fn keep(mut self, target: &Path) -> Result<(), Failure> {
        std::fs::rename(&self.path, target).with_context(|| format!("cannot write {}", target.display()))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

async fn file_down(context: &Context, id: &str, from: &str, to: &Path) -> Result<(), Failure> {
    let mut download = context.client.download(id, from).await?;
    let (partial, mut file) = Partial::beside(to)?;
    while let Some(piece) = download.next().await? {
        file.write_all(&piece).with_context(|| format!("cannot write {}", to.display()))?;
    }
    file.sync_all().with_context(|| format!("cannot write {}", to.display()))?;
    partial.keep(to)
}

/// Unpacked as it comes. A cut shows in the archive itself, and what came before it stays to be copied again.
async fn dir_down(context: &Context, id: &str, from: &str, to: &Path) -> Result<(), Failure> {
    let mut download = context.client.download_archive(id, from).await?;
    let (pieces, received) = mpsc::channel::<Bytes>(4);
    let target = to.to_owned();
    let worker =
        tokio::task::spawn_blocking(move || unpack(&target, Received { pieces: received, current: Bytes::new() }));
    let mut cut = None;
    loop {
        match download.next().await {
            Ok(Some(piece)) => {
                if pieces.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                cut = Some(error);
                break;
            }
        }
    }
    drop(pieces);
    let unpacked = worker.await.context("unpacking failed")?;
    match (cut, unpacked) {
        (Some(error), _) => {
            Err(ClientError::local("download_incomplete", format!("the copy of {from} came short: {error}")).into())
        }
        (None, Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(ClientError::local("download_incomplete", format!("the copy of {from} came short")).into())
        }
        (None, Err(error)) => {
            Err(anyhow::Error::new(error).context(format!("cannot unpack into {}", to.display())).into())
        }
        (None, Ok(())) => Ok(()),
    }
}

fn unpack(target: &Path, input: impl Read) -> std::io::Result<()> {
    std::fs::create_dir_all(target)?;
    let mut archive = tar::Archive::new(GzDecoder::new(input));
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    // As a single file: who runs it here is nobody's but the user's to say.
    archive.set_mask(0o7000);
    // Names that lead out of the target are left out by the reader, and links are not followed on the way.
    archive.unpack(target)?;
    // The checksum is at the very end.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink()).map(drop)
}

struct Received {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Read for Received {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let piece = self.current.split_to(self.current.len().min(buf.len()));
        buf[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_side_is_there() {
        let there = |sandbox: &str, path: &str| Side::There { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(side("worker:/workspace/a:b"), there("worker", "/workspace/a:b"));
        for here in ["a", "./a:b", "/x:/y", "a:b", ":/x", "dir/a:/b"] {
            assert_eq!(side(here), Side::Here(here.into()), "{here}");
        }
        let check =
            |from: &str, to: &str| check(&CpArgs { from: from.into(), to: to.into(), recursive: false }).is_ok();
        assert!(check("a", "w:/b") && check("w:/b", "."));
        assert!(!check("a", "b") && !check("w:/a", "v:/b"));
    }

    #[tokio::test]
    async fn what_is_packed_unpacks_the_same_and_a_cut_does_not() {
        let from = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(from.path().join("d")).expect("made");
        std::fs::write(from.path().join("d/big"), vec![7; 3_000_000]).expect("written");
        std::os::unix::fs::symlink("d/big", from.path().join("link")).expect("linked");
        std::fs::set_permissions(from.path().join("d/big"), PermissionsExt::from_mode(0o6755)).expect("allowed");
        let (pieces, mut packed) = mpsc::channel(1000);
        let root = from.path().to_owned();
        tokio::task::spawn_blocking(move || pack(&root, Pieces { pieces, current: Vec::new(), step: 1000 }))
            .await
            .expect("ran")
            .expect("packed");
        let mut data = Vec::new();
        while let Some(piece) = packed.recv().await {
            assert!(piece.len() <= 1000);
            data.extend_from_slice(&piece);
        }
        let to = tempfile::tempdir().expect("a directory");
        unpack(to.path(), &data[..]).expect("unpacked");
        assert_eq!(std::fs::read(to.path().join("link")).expect("read"), vec![7; 3_000_000]);
        let mode = std::fs::metadata(to.path().join("d/big")).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o755, "nobody's rights come out of a sandbox");
        for cut in [data.len() / 2, data.len() - 1] {
            let again = tempfile::tempdir().expect("a directory");
            let error = unpack(again.path(), &data[..cut]).expect_err("cut");
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
        }
    }
}
