package shop;

import java.io.Serializable;
import java.sql.*;
import java.util.Properties;
import org.hibernate.HibernateException;
import org.hibernate.dialect.Dialect;
import org.hibernate.engine.SessionImplementor;
import org.hibernate.id.Configurable;
import org.hibernate.id.IdentifierGenerator;
import org.hibernate.type.Type;

/** Takes ids of a tag in blocks: one statement for so many rows. */
public class LeafIds implements IdentifierGenerator, Configurable {
    private String tag;
    private int block;
    private long next = 1;
    private long last = 0;

    @Override
    public void configure(Type type, Properties parameters, Dialect dialect) {
        tag = parameters.getProperty("tag");
        block = Integer.parseInt(parameters.getProperty("block", "50"));
    }

    @Override
    public synchronized Serializable generate(SessionImplementor session, Object entity) throws HibernateException {
        if (next > last) {
            // In the transaction of the caller: its rollback only leaves a gap.
            try (PreparedStatement range = session.connection().prepareStatement("SELECT * FROM leaf_segment_next_range(?, ?)")) {
                range.setString(1, tag);
                range.setInt(2, block);
                ResultSet row = range.executeQuery();
                row.next();
                next = row.getLong("first_id");
                last = row.getLong("last_id");
            } catch (SQLException error) {
                throw new HibernateException(error);
            }
        }
        return next++;
    }
}
