package shop;

import java.sql.*;
import java.util.EnumSet;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.generator.*;

/** Takes ids of a tag in blocks: one statement for so many rows. */
public class LeafIds implements BeforeExecutionGenerator {
    private final LeafId id;
    private long next = 1;
    private long last = 0;

    /** Hibernate passes the annotation of the key. */
    public LeafIds(LeafId id) {
        this.id = id;
    }

    @Override
    public synchronized Object generate(
            SharedSessionContractImplementor session, Object owner, Object current, EventType event) {
        if (next > last) session.doWork(this::take);
        return next++;
    }

    // In the transaction of the caller: its rollback only leaves a gap.
    private void take(Connection db) throws SQLException {
        try (PreparedStatement range = db.prepareStatement("SELECT * FROM leaf_segment_next_range(?, ?)")) {
            range.setString(1, id.tag());
            range.setInt(2, id.block());
            ResultSet row = range.executeQuery();
            row.next();
            next = row.getLong("first_id");
            last = row.getLong("last_id");
        }
    }

    @Override
    public EnumSet<EventType> getEventTypes() {
        return EventTypeSets.INSERT_ONLY;
    }
}
