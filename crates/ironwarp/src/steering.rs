//! Which lane of the adapter serves which queue pair, to be seen and changed while traffic flows. Before this: [`Adapter::steering`].
//!
//! [`Adapter::steering`]: crate::Adapter::steering

use crate::adapter::Shared;
use crate::queue_pair::QueuePair;
use ironwarp_engine::{LaneLoad, MoveError, NoSuchLane};
use ironwarp_rnic::steering::RedirectionTable;
use std::io;
use std::sync::Arc;

/// The lanes of an adapter: threads that serve its connections while the program does not.
///
/// A new connection goes to the lane that a hash of its addresses leads to, through a [table](RedirectionTable). The adapter moves
/// queue pairs from a lane with much to do to one with little by itself ([`Config::rebalance`](crate::Config::rebalance)).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// let steering = adapter.steering();
/// for (lane, load) in steering.load().iter().enumerate() {
///     println!("lane {lane}: {} sockets, {:?} of a processor", load.sockets, load.busy);
/// }
/// // From now on, all new connections go to the last lane.
/// let mut table = steering.table();
/// table.entries_mut().fill(u16::try_from(steering.lanes() - 1)?);
/// steering.set_table(table)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Steering {
    shared: Arc<Shared>,
}

impl Steering {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// How many lanes there are: [`Config::lanes`](crate::Config::lanes), or as many as there are processors.
    ///
    /// ```
    /// # use ironwarp::{Adapter, Config};
    /// let adapter = Adapter::open(Config { lanes: 1, ..Config::default() })?;
    /// assert_eq!(adapter.steering().lanes(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lanes(&self) -> usize {
        self.shared.engine.steering().lanes()
    }

    /// The redirection table as it is now.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert_eq!(steering.table(), ironwarp::RedirectionTable::spread(steering.lanes()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn table(&self) -> RedirectionTable {
        self.shared.engine.steering().table()
    }

    /// Changes the redirection table. New connections go by it; those that there are stay where they are.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// use ironwarp::RedirectionTable;
    ///
    /// steering.set_table(RedirectionTable::spread(1)).expect("there is a lane 0");
    /// assert!(steering.set_table(RedirectionTable::spread(steering.lanes() + 1)).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_table(&self, table: RedirectionTable) -> Result<(), NoSuchLane> {
        self.shared.engine.steering().set_table(table)
    }

    /// What each lane has to do, and did so far.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert!(steering.load().iter().all(|lane| lane.sockets == 0), "nothing is connected");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn load(&self) -> Vec<LaneLoad> {
        self.shared.engine.steering().load()
    }

    /// On which processors a lane may run.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert!(!steering.processors(0)?.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn processors(&self, lane: usize) -> io::Result<Vec<usize>> {
        self.shared.engine.steering().processors(lane)
    }

    /// Lets a lane run on these processors and no others (requirement N5). It fails if the process may use none of them.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// let first = steering.processors(0)?[0];
    /// steering.set_processors(0, &[first])?;
    /// assert_eq!(steering.processors(0)?, [first]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_processors(&self, lane: usize, processors: &[usize]) -> io::Result<()> {
        self.shared.engine.steering().set_processors(lane, processors)
    }

    /// Moves a queue pair to another lane while traffic flows: nothing is lost, doubled or reordered, and its completion queues are
    /// used as before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let steering = client.adapter.steering();
    /// let last = steering.lanes() - 1;
    /// steering.move_queue_pair(&client.qp, last)?;
    /// assert_eq!(client.qp.lane(), Some(last));
    /// # Ok(())
    /// # }
    /// ```
    pub fn move_queue_pair(&self, qp: &QueuePair, to: usize) -> Result<(), MoveError> {
        self.shared.engine.steering().move_queue_pair(qp.inner(), to)
    }
}
