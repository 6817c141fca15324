//! Watches: what happens to the files below a path, as inotify tells it, held for readers by cursor.
//!
//! A watch belongs to the sandbox, not to who reads it: it lives until it is stopped, its time is up, or its root is
//! gone, and a saved machine saves it. Each has a thread ([`watcher`]) with the user's rights, and a [`log`].

mod batch;
mod filter;
mod log;
mod tree;
mod watcher;

use std::collections::HashSet;
use std::io::PipeWriter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runtime_proto::channel::Stream;
use runtime_proto::guest::{
    self, ChangeKind, ErrorCode, FileKind, FollowWatch, GuestError, MAX_WATCHES, Removed, StartWatch, Tell, User,
    WatchEnd,
};
use rustix::fs::inotify::{CreateFlags, WatchFlags, init};
use tokio::sync;

use crate::Agent;
use crate::files::{FileError, absolute, act_here, kind_of};
use crate::process::requests::hung_up;
use crate::serve::{Answer, Failure, tell};
use filter::Filter;
use log::Log;
use tree::Tree;
use watcher::Watcher;

/// Ended ones that can still be read.
const KEPT_ENDED: usize = 16;
const LONGEST_BATCH: u32 = 60_000;
/// How long the end of one that was stopped is waited for.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// All watches, oldest first.
#[derive(Default)]
pub(crate) struct Watches {
    inner: Mutex<Vec<Arc<Watch>>>,
}

struct Watch {
    id: String,
    key: String,
    path: String,
    started_at_ms: u64,
    log: Arc<Log>,
    /// Closing it stops the watch.
    stop: Mutex<Option<PipeWriter>>,
    /// How its start went, once that is known.
    began: sync::watch::Sender<Option<Result<(), GuestError>>>,
}

impl Watch {
    fn describe(&self, attached: bool) -> guest::Watch {
        guest::Watch {
            id: self.id.clone(),
            path: self.path.clone(),
            cursor: self.log.cursor(),
            started_at_ms: self.started_at_ms,
            ended: self.log.ended(),
            attached,
        }
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &str) -> Result<Arc<Watch>, GuestError> {
        // The newest: the id of one that has ended may be taken again.
        self.lock().iter().rev().find(|watch| watch.id == id).cloned().ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            GuestError::new(ErrorCode::NoSuchWatch, format!("there is no watch {shown}"))
        })
    }

    /// Enters a new one, or finds the one its key names (then `true`).
    fn enter(&self, watch: Watch) -> Result<(Arc<Watch>, bool), GuestError> {
        let mut all = self.lock();
        if let Some(known) = all.iter().find(|known| !watch.key.is_empty() && known.key == watch.key) {
            return Ok((known.clone(), true));
        }
        let live = all.iter().filter(|known| !known.log.ended()).count();
        if all.iter().any(|known| known.id == watch.id && !known.log.ended()) {
            let message = format!("starting a watch: the id {} is taken", watch.id);
            return Err(GuestError::new(ErrorCode::AlreadyExists, message));
        }
        if live >= MAX_WATCHES {
            let message = format!("starting a watch: {MAX_WATCHES} go on already");
            return Err(GuestError::new(ErrorCode::WatchLimit, message));
        }
        while all.len() - live >= KEPT_ENDED {
            let Some(oldest) = all.iter().position(|known| known.log.ended()) else { break };
            all.remove(oldest);
        }
        let watch = Arc::new(watch);
        all.push(watch.clone());
        Ok((watch, false))
    }

    fn withdraw(&self, watch: &Arc<Watch>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, watch));
    }
}

pub(crate) async fn start(agent: &Arc<Agent>, wanted: StartWatch) -> Answer {
    let user = User::try_from(wanted.user)
        .map_err(|_| GuestError::new(ErrorCode::Invalid, "starting a watch: the user is unknown"))?;
    let root = absolute(&wanted.path)?;
    let filter = Filter::new(&wanted)?;
    let no_pipe = |error| GuestError::new(ErrorCode::Busy, format!("starting a watch: making a pipe: {error}"));
    let (stop, closes) = std::io::pipe().map_err(no_pipe)?;
    let log = Arc::new(Log::default());
    let watch = Watch {
        id: wanted.watch_id.clone(),
        key: wanted.key.clone(),
        path: root.to_string_lossy().into_owned(),
        started_at_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        log: log.clone(),
        stop: Mutex::new(Some(closes)),
        began: sync::watch::Sender::new(None),
    };
    let (watch, known) = agent.watches.enter(watch)?;
    if !known {
        let running = Running { agent: agent.clone(), watch: watch.clone() };
        let spawned = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            // The identity is the thread's for as long as it lives.
            let ran = act_here(user, || {
                let watcher = prepare(root, &wanted, filter, log)?;
                running.watch.began.send_replace(Some(Ok(())));
                watcher.run(&stop);
                Ok(())
            });
            if let Err(error) = ran {
                running.failed(error.to_guest());
            }
        });
        if let Err(error) = spawned {
            let message = format!("starting a watch: making a thread: {error}");
            return Err(GuestError::new(ErrorCode::Busy, message).into());
        }
    }
    // Whoever finds it by its key waits as the first one does. It goes on though nobody waits.
    let began = watch.began.subscribe().wait_for(Option::is_some).await.ok().and_then(|began| began.clone());
    began.unwrap_or_else(|| Err(ended_at_once()))?;
    // Its beginning: what was told at the start, or before a resend found it, is not passed over.
    Ok(Tell::Watch(guest::Watch { cursor: 0, ..watch.describe(known) }))
}

fn ended_at_once() -> GuestError {
    GuestError::new(ErrorCode::Internal, "starting a watch: its thread ended at once")
}

/// The thread of a watch: however it ends, nobody waits for it in vain, and it takes none of the places.
struct Running {
    agent: Arc<Agent>,
    watch: Arc<Watch>,
}

impl Running {
    fn failed(&self, error: GuestError) {
        self.agent.watches.withdraw(&self.watch);
        self.watch.began.send_if_modified(|began| {
            let news = began.is_none();
            *began = began.take().or(Some(Err(error)));
            news
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.watch.began.borrow().is_none() {
            self.failed(ended_at_once());
        }
        if !self.watch.log.ended() {
            self.watch.log.end(WatchEnd::Unknown);
        }
    }
}

/// Everything is looked at before the watch is said to go on: what changes from then on is seen.
fn prepare(root: PathBuf, wanted: &StartWatch, filter: Filter, log: Arc<Log>) -> Result<Watcher, FileError> {
    let stat = rustix::fs::stat(&root).map_err(FileError::at("watching", &root))?;
    let is_dir = kind_of(&stat) == FileKind::Directory;
    let named: HashSet<ChangeKind> = wanted.kinds.iter().filter_map(|kind| ChangeKind::try_from(*kind).ok()).collect();
    let kinds = if named.is_empty() {
        use ChangeKind as K;
        HashSet::from([K::Create, K::Write, K::Remove, K::Rename, K::Chmod])
    } else {
        named
    };
    let mut flags = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    if is_dir {
        flags |= WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
    }
    for (kind, flag) in [
        (ChangeKind::Write, WatchFlags::MODIFY),
        (ChangeKind::Chmod, WatchFlags::ATTRIB),
        (ChangeKind::Access, WatchFlags::ACCESS),
    ] {
        if kinds.contains(&kind) {
            flags |= flag;
        }
    }
    let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(FileError::at("watching", &root))?;
    let most = if wanted.max_watches == 0 { tree::most() } else { wanted.max_watches as usize };
    let mut tree = Tree::new(inotify, root.clone(), wanted.recursive && is_dir, flags, most);
    tree.add_root(is_dir).map_err(FileError::at("watching", &root))?;
    let batch_time = Duration::from_millis(wanted.batch_ms.min(LONGEST_BATCH).into());
    let left = (wanted.timeout_ms > 0).then(|| Duration::from_millis(wanted.timeout_ms));
    let mut watcher = Watcher::new(root, tree, filter, kinds, batch_time, left, log);
    watcher.begin();
    Ok(watcher)
}

pub(crate) async fn list(agent: &Arc<Agent>, stream: &Stream) -> Result<(), Failure> {
    let live: Vec<guest::Watch> = {
        let all = agent.watches.lock();
        all.iter().map(|watch| watch.describe(false)).filter(|watch| !watch.ended).collect()
    };
    for watch in live {
        tell(stream, Tell::Watch(watch)).await?;
    }
    Ok(())
}

pub(crate) async fn stop(agent: &Arc<Agent>, id: &str) -> Answer {
    let watch = agent.watches.get(id)?;
    let was_live = !watch.log.ended();
    drop(watch.stop.lock().unwrap_or_else(PoisonError::into_inner).take());
    // It ends by itself in any case.
    let _ = tokio::time::timeout(STOP_WAIT, watch.log.settled()).await;
    Ok(Tell::Removed(Removed { removed: was_live }))
}

pub(crate) async fn follow(agent: &Arc<Agent>, wanted: FollowWatch, stream: &mut Stream) -> Answer {
    let watch = agent.watches.get(&wanted.watch_id)?;
    let mut cursor = wanted.cursor;
    if cursor > watch.log.cursor() {
        let message = format!("reading the watch {}: the cursor {cursor} is past its end", watch.id);
        return Err(GuestError::new(ErrorCode::Invalid, message).into());
    }
    if wanted.once {
        let wait = Duration::from_millis(wanted.wait_ms);
        tokio::select! {
            _ = tokio::time::timeout(wait, watch.log.wait(cursor)) => {}
            gone = hung_up(stream) => return Err(gone.into()),
        }
    }
    // A poll is about what is there now.
    let until = watch.log.cursor();
    loop {
        let seen = watch.log.after(cursor);
        for record in seen.records {
            cursor = record.cursor;
            tell(stream, Tell::WatchRecord(record)).await?;
        }
        if seen.ended || (wanted.once && cursor >= until) {
            return Ok(Tell::Watch(guest::Watch { ended: seen.ended, cursor, ..watch.describe(false) }));
        }
        tokio::select! {
            () = watch.log.wait(cursor) => {}
            gone = hung_up(stream) => return Err(gone.into()),
        }
    }
}
