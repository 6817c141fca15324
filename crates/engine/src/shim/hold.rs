//! Holding the processes of a sandbox still, and letting them go on.
//!
//! A virtual machine is asked how it stands, and told again as often as one likes.
//!
//! gVisor counts how often it was told to stop, and ends the sandbox when it is told to go on once too often. So a file
//! says how things stand, for the next shim: it is there from before the first word to after the last. Where it only says
//! what was about to be done, gVisor is looked at.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use runtime_host::process::ProcessId;

use super::Spec;
use crate::driver::gvisor::urpc::{Control, UrpcError};
use crate::driver::microvm::vmm::{At, Program, VmmError};
use crate::driver::record;

const SURE: &[u8] = b"frozen\n";
const FREEZING: &[u8] = b"freezing\n";
const THAWING: &[u8] = b"thawing\n";
/// Told to stop, every process does within this time.
const STOP_LIMIT: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error(transparent)]
    Sentry(#[from] UrpcError),
    #[error(transparent)]
    Vmm(#[from] VmmError),
    #[error("cannot note it in {path}")]
    Note {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

pub(super) trait Hold {
    fn is_frozen(&self) -> bool;
    /// Fine when it is done already; so is the other.
    fn freeze(&mut self) -> Result<(), HoldError>;
    fn thaw(&mut self) -> Result<(), HoldError>;
}

/// gVisor's.
pub(super) struct SentryHold {
    control: PathBuf,
    note: PathBuf,
    frozen: bool,
}

impl SentryHold {
    /// Of a sandbox that has just been made.
    pub(super) fn new(spec: &Spec, control: PathBuf) -> Self {
        Self { control, note: spec.places.machine_dir.join(record::FROZEN), frozen: false }
    }

    /// Of one that another shim left.
    pub(super) fn adopt(spec: &Spec, control: PathBuf) -> Result<Self, HoldError> {
        let mut hold = Self::new(spec, control);
        match fs::read(&hold.note) {
            Ok(text) if text == SURE => hold.frozen = true,
            // It died between the note and the deed, or after it.
            Ok(text) => {
                hold.frozen = hold.look()?;
                match (hold.frozen, text == FREEZING) {
                    (true, _) => hold.note(SURE)?,
                    (false, true) => hold.freeze()?,
                    (false, false) => hold.forget()?,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(HoldError::Note { path: hold.note, source }),
        }
        Ok(hold)
    }

    fn look(&self) -> Result<bool, HoldError> {
        let end = Instant::now() + STOP_LIMIT;
        loop {
            let frozen = Control::connect(&self.control).and_then(|mut control| control.is_frozen())?;
            if frozen || Instant::now() > end {
                return Ok(frozen);
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn forget(&self) -> Result<(), HoldError> {
        match fs::remove_file(&self.note) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(HoldError::Note { path: self.note.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn note(&self, text: &[u8]) -> Result<(), HoldError> {
        let fail = |source| HoldError::Note { path: self.note.clone(), source };
        let new = self.note.with_extension("new");
        File::create(&new).and_then(|mut file| file.write_all(text)).map_err(fail)?;
        fs::rename(&new, &self.note).map_err(fail)
    }
}

impl Hold for SentryHold {
    fn is_frozen(&self) -> bool {
        self.frozen
    }

    fn freeze(&mut self) -> Result<(), HoldError> {
        if self.frozen {
            return Ok(());
        }
        self.note(FREEZING)?;
        if let Err(error) = Control::connect(&self.control).and_then(|mut control| control.freeze()) {
            // Refused, or done after all.
            self.frozen = self.look()?;
            if !self.frozen {
                self.forget()?;
                return Err(error.into());
            }
        }
        self.frozen = true;
        self.note(SURE)
    }

    fn thaw(&mut self) -> Result<(), HoldError> {
        if !self.frozen {
            return Ok(());
        }
        self.note(THAWING)?;
        if let Err(error) = Control::connect(&self.control).and_then(|mut control| control.thaw())
            && self.look()?
        {
            self.note(SURE)?;
            return Err(error.into());
        }
        self.frozen = false;
        self.forget()
    }
}

/// A virtual machine's.
pub(super) struct VmHold {
    program: Program,
    run_dir: PathBuf,
    process: ProcessId,
    frozen: bool,
}

impl VmHold {
    /// Of a machine that runs, as it was just made.
    pub(super) fn new(program: Program, run_dir: PathBuf, process: ProcessId) -> Self {
        Self { program, run_dir, process, frozen: false }
    }

    /// Of one that another shim left.
    pub(super) fn adopt(program: Program, run_dir: PathBuf, process: ProcessId) -> Result<Self, HoldError> {
        let mut hold = Self::new(program, run_dir, process);
        hold.frozen = hold.program.vmm().is_paused(&hold.at())?;
        Ok(hold)
    }

    fn at(&self) -> At<'_> {
        At { run_dir: &self.run_dir, process: self.process }
    }
}

impl Hold for VmHold {
    fn is_frozen(&self) -> bool {
        self.frozen
    }

    fn freeze(&mut self) -> Result<(), HoldError> {
        if !self.frozen {
            self.program.vmm().pause(&self.at())?;
            self.frozen = true;
        }
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), HoldError> {
        if self.frozen {
            self.program.vmm().resume(&self.at())?;
            self.frozen = false;
        }
        Ok(())
    }
}
