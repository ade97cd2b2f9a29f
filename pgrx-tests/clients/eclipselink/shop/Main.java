package shop;

import java.util.*;
import javax.persistence.*;

/** EclipseLink: entities with keys from blocks. */
public class Main {
    public static void main(String[] args) {
        String url = "jdbc:postgresql://%s:%s/%s".formatted(
            System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE"));
        EntityManagerFactory factory = Persistence.createEntityManagerFactory("shop", Map.of(
            "javax.persistence.jdbc.url", url,
            "javax.persistence.jdbc.user", System.getenv("PGUSER"),
            "javax.persistence.jdbc.password", System.getenv("PGPASSWORD")));
        EntityManager manager = factory.createEntityManager();
        manager.getTransaction().begin();
        Set<Long> seen = new HashSet<>();
        long last = 0;
        for (int i = 0; i < 1000; i++) {
            Order order = new Order("cake " + i);
            manager.persist(order);
            // Known before the INSERT.
            if (order.id <= last || !seen.add(order.id)) throw new IllegalStateException(order.id + " after " + last);
            last = order.id;
        }
        manager.getTransaction().commit();
        long rows = manager.createQuery("SELECT count(o) FROM Order o", Long.class).getSingleResult();
        if (rows != 1000) throw new IllegalStateException(rows + " rows");
        // 1000 ids were taken in 20 blocks, and nothing was thrown away.
        long next = (Long) manager.createNativeQuery("SELECT leaf_segment_next('orders')").getSingleResult();
        if (next != 1001) throw new IllegalStateException("1000 keys took " + (next - 1) + " ids");
        manager.close();
        factory.close();
        System.out.println("checked " + seen.size() + " ids");
    }
}
