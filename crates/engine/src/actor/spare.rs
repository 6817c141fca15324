//! A machine that is made before anybody asks for one, and what a start makes of it.
//!
//! It is booted under rules that let nothing out, and nobody has greeted its agent: the claim swaps the rules, then says
//! hello, and with that it is what a start would have made. Where anything is wrong with it, the start makes another.

use runtime_proto::node::{Disk, NodeError, Order};

use super::{Actor, Held, Running, stopped_meanwhile};
use crate::driver::Booted;
use crate::host_state::failed;

/// What a spare was made for.
pub(crate) struct Ready {
    pub(super) booted: Box<dyn Booted>,
    order: Order,
}

impl Actor {
    /// Makes the machine and keeps it. On failure nothing of it is left.
    pub(super) async fn prepare(&mut self, order: Order) -> Result<(), NodeError> {
        if !matches!(self.machine, Held::Down) {
            return Err(NodeError::Busy("there is a machine of that name".to_owned()));
        }
        let state = self.state.clone();
        let admitted = state.admit()?;
        let turn = self.turn(&state).await?;
        let made = self.make(&order).await;
        drop((turn, admitted));
        match made {
            Ok(booted) => {
                self.spare.send_replace(Some(booted.group()));
                self.machine = Held::Spare(Ready { booted, order });
                Ok(())
            }
            Err(error) => {
                self.undo_start(Disk::New).await;
                self.state.unmark_spare(self.id)?;
                Err(error)
            }
        }
    }

    async fn make(&mut self, order: &Order) -> Result<Box<dyn Booted>, NodeError> {
        // The next server removes it, whatever has become of it.
        self.state.mark_spare(self.id)?;
        let root = self.lay_out(order).await?;
        let plan = self.state.plan(order, root);
        let abort = plan.abort.clone();
        self.arm(order).await?;
        let state = self.state.clone();
        let boot = state.driver.boot(plan);
        self.unless_stopped(abort, boot).await.map_err(|error| match error {
            None => stopped_meanwhile(),
            Some(error) => failed("boot the spare", self.id, error),
        })
    }

    /// Makes the spare the sandbox that was ordered. After an error whatever is held has to be undone.
    pub(super) async fn claim(&mut self, order: &Order) -> Result<(), NodeError> {
        let Held::Spare(Ready { booted, order: made }) = std::mem::replace(&mut self.machine, Held::Down) else {
            return Err(NodeError::NotRunning);
        };
        self.spare.send_replace(None);
        let same = order.disk == Disk::New && order.shape == made.shape && order.hostname == made.hostname;
        let armed =
            if same { self.arm(order).await } else { Err(NodeError::Failed("it was made otherwise".to_owned())) };
        if let Err(error) = armed {
            self.machine = Held::Spare(Ready { booted, order: made });
            return Err(error);
        }
        self.greet(Running::new(self.id, booted, &self.state)).await?;
        // From here on it is worth keeping.
        self.state.unmark_spare(self.id)?;
        self.show();
        self.state.unmark(self.id)
    }
}
