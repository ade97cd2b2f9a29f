package shop;

import org.eclipse.persistence.config.SessionCustomizer;
import org.eclipse.persistence.queries.ValueReadQuery;
import org.eclipse.persistence.sequencing.QuerySequence;
import org.eclipse.persistence.sessions.Session;

/** Makes the generator "orders" take blocks of 50 ids of the tag "orders". */
public class LeafSequences implements SessionCustomizer {
    @Override
    public void customize(Session session) {
        // EclipseLink counts down from what the query returns.
        QuerySequence sequence = new QuerySequence("orders", 50, false, false);
        sequence.setSelectQuery(new ValueReadQuery("SELECT last_id FROM leaf_segment_next_range('orders', 50)"));
        session.getLogin().addSequence(sequence);
    }
}
